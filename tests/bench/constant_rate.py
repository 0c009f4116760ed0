"""Grants over HTTP at a constant rate, each for a new user.

A grant is sent when it is due, even if earlier grants have no response yet.
"""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.client import CHANGE, GRANTS

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack

CALLERS = 4
# Every caller must be ready when the first grant is due.
_HEAD_START_SECONDS = 0.2
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Responses:
    """Users with an acknowledged grant, the latency of each grant since it was due, and every other response."""

    users: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def send_grants(stack: EmbeddedStack, prefix: str, *, count: int, rate: float) -> Responses:
    """Send `count` grants, `rate` per second, and return their responses."""
    address = urlsplit(stack.api_url)
    caller = partial(_send, address.netloc, address.path + GRANTS, stack.token)
    start = time.monotonic() + _HEAD_START_SECONDS
    schedule = [(f"{prefix}_{number}", start + number / rate) for number in range(count)]
    responses = Responses()
    with ThreadPoolExecutor(CALLERS) as pool:
        for part in pool.map(caller, (schedule[number::CALLERS] for number in range(CALLERS))):
            responses.users.extend(part.users)
            responses.latencies.extend(part.latencies)
            responses.errors.extend(part.errors)
    return responses


def _send(host: str, path: str, token: str, schedule: list[tuple[str, float]]) -> Responses:
    """Send the grants of one caller over one connection."""
    responses = Responses()
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    for user, due in schedule:
        time.sleep(max(0.0, due - time.monotonic()))
        body = json.dumps(CHANGE | {"user_id": user, "purchase_id": user})
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": user}
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            responses.errors.append(repr(error))
            continue
        if response.status == HTTPStatus.OK:
            responses.users.append(user)
            responses.latencies.append(time.monotonic() - due)
        else:
            responses.errors.append(f"{response.status} {text}")
    connection.close()
    return responses
