"""Callers who do not wait for one another: grants over HTTP at an even pace, each for somebody new."""

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
# Time for every caller to be there when the first grant is due.
_HEAD_START = 0.2
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Users with an acknowledged grant, how long each took from when it was due, and all other answers."""

    users: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def grants(stack: EmbeddedStack, prefix: str, *, count: int, rate: float) -> Answers:
    """So many grants, so many a second, whether or not those before them have been answered."""
    address = urlsplit(stack.api_url)
    caller = partial(_call, address.netloc, address.path + GRANTS, stack.token)
    start = time.monotonic() + _HEAD_START
    dues = [(f"{prefix}_{number}", start + number / rate) for number in range(count)]
    answers = Answers()
    with ThreadPoolExecutor(CALLERS) as pool:
        for part in pool.map(caller, (dues[number::CALLERS] for number in range(CALLERS))):
            answers.users.extend(part.users)
            answers.latencies.extend(part.latencies)
            answers.errors.extend(part.errors)
    return answers


def _call(host: str, path: str, token: str, dues: list[tuple[str, float]]) -> Answers:
    """One caller's grants, over one connection."""
    answers = Answers()
    connection = http.client.HTTPConnection(host, timeout=_PATIENCE)
    for user, due in dues:
        time.sleep(max(0.0, due - time.monotonic()))
        body = json.dumps(CHANGE | {"user_id": user, "purchase_id": user})
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": user}
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            answers.errors.append(repr(error))
            continue
        if answer.status == HTTPStatus.OK:
            answers.users.append(user)
            answers.latencies.append(time.monotonic() - due)
        else:
            answers.errors.append(f"{answer.status} {text}")
    connection.close()
    return answers
