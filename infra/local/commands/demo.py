"""`make demo`: what Grantwire promises, shown on the running stack."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import psycopg

from infra.local.errors import CommandError
from infra.local.stack.description import read_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

GRANTS = "/v1/entitlements/grants"
REVOKES = "/v1/entitlements/revokes"
INBOX = "/debug/notification/inbox"
ARRIVES_WITHIN = 20.0  # the workers may have to start first

# What each step of the way left behind, by the database's clock.
WAY = """
SELECT o.event_type,
       o.created_at                                          AS committed,
       extract(epoch FROM o.published_at - o.created_at) * 1000 AS published,
       extract(epoch FROM n.created_at - o.created_at) * 1000   AS bridged,
       extract(epoch FROM n.sent_at - o.created_at) * 1000      AS sent
  FROM outbox_events o LEFT JOIN notifications n USING (event_id)
 WHERE o.payload ->> 'user_id' = %s
 ORDER BY o.aggregate_version
"""


class Answer(NamedTuple):
    """What came back, and how long it took."""

    status: int
    replayed: bool
    body: str
    milliseconds: float


class Client:
    """One kept connection to the API."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._token = token
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def send(self, method: str, path: str, *, key: str = "", body: dict[str, str] | None = None) -> Answer:
        """Send one request."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        began = time.perf_counter()
        try:
            self._connection.request(method, self._path + path, json.dumps(body) if body else None, headers)
            response = self._connection.getresponse()
            text = response.read().decode()
        except OSError as error:
            raise CommandError(f"The API does not answer: {error}", hint="`make up` starts it.") from error
        milliseconds = (time.perf_counter() - began) * 1000
        replayed = response.headers.get("Idempotent-Replayed", "") == "true"
        return Answer(response.status, replayed, text, milliseconds)


def demo(_arguments: Sequence[str], progress: Progress) -> int:
    """Walk through a right's life, one request after the other."""
    found = read_description()
    client = Client(found["api_url"], found["token"])
    run = secrets.token_hex(3)
    user, key, revoke_key = f"u_{run}", f"p_{run}", f"r_{run}"
    body = {"user_id": user, "stock_keeping_unit": "sku_pro", "reason": "PURCHASE", "purchase_id": key}
    other = {**body, "stock_keeping_unit": "sku_other"}
    refund = {**body, "reason": "REFUND"}
    for path in (GRANTS, REVOKES):
        client.send("POST", path)  # refused, but the first call of a function starts its process
    for name in ("entitlements", "summary"):
        client.send("GET", f"/v1/users/{user}/{name}")

    def post(title: str, path: str, key: str, body: dict[str, str]) -> None:
        progress.say(f"\n{title}\n  POST {path}  Idempotency-Key: {key}\n  {json.dumps(body)}")
        _show(client.send("POST", path, key=key, body=body), progress)

    post("A grant.", GRANTS, key, body)
    post("The same request again: the stored answer, nothing runs twice.", GRANTS, key, body)
    post("The same key with another request is refused.", GRANTS, key, other)
    post("Another key for a right that is already held: a state conflict.", GRANTS, f"{key}b", body)
    post("A revoke.", REVOKES, revoke_key, refund)
    post("The first request once more: still its first answer.", GRANTS, key, body)
    progress.say(f"\nWhat the user holds now.\n  GET /v1/users/{user}/entitlements")
    _show(client.send("GET", f"/v1/users/{user}/entitlements"), progress)
    progress.say("\nThe way of the two events.")
    _show_way(found["database_url"], user, progress)
    progress.say(f"\nWhat the read model made of them.\n  GET /v1/users/{user}/summary")
    _show(client.send("GET", f"/v1/users/{user}/summary"), progress)
    progress.say(f"\nWhat the user was told.\n  GET {INBOX}/{user}")
    _show(client.send("GET", f"{INBOX}/{user}"), progress)
    return 0


def _show(answer: Answer, progress: Progress) -> None:
    replayed = ", Idempotent-Replayed: true" if answer.replayed else ""
    progress.say(f"  → {answer.status}{replayed}  ({answer.milliseconds:.0f} ms)\n  {answer.body}")


def _show_way(database_url: str, user: str, progress: Progress) -> None:
    """The way of each event, from the commit to the receiver."""
    deadline = time.monotonic() + ARRIVES_WITHIN
    with psycopg.connect(database_url, autocommit=True) as connection:
        while True:
            events = connection.execute(WAY, [user]).fetchall()
            if all(sent is not None for *_, sent in events) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    for event_type, committed, *steps in events:
        names = ("in the stream", "in the inbox", "sent")
        way = ", ".join(
            f"{name} after {step:.0f} ms" if step is not None else f"not {name} yet"
            for name, step in zip(names, steps, strict=True)
        )
        progress.say(f"  {event_type}: committed {committed:%H:%M:%S}, {way}")
