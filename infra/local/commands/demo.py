"""`make demo`: example requests to the running stack, with their responses, events and timings."""

from __future__ import annotations

import datetime as dt
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
RENTAL_SECONDS = 4
DELIVERY_TIMEOUT_SECONDS = 20.0  # the workers may have to start first

# The time of each step of an event, by the database's clock.
EVENT_STEPS = """
SELECT o.event_type,
       o.created_at                                          AS committed,
       extract(epoch FROM o.published_at - o.created_at) * 1000 AS published,
       extract(epoch FROM n.created_at - o.created_at) * 1000   AS bridged,
       extract(epoch FROM n.sent_at - o.created_at) * 1000      AS sent
  FROM outbox_events o LEFT JOIN notifications n USING (event_id)
 WHERE o.payload ->> 'user_id' = %s
 ORDER BY o.aggregate_version
"""


class Response(NamedTuple):
    """A response of the API and how long it took."""

    status: int
    replayed: bool
    body: str
    milliseconds: float


class Client:
    """A client of the API with one persistent connection."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._token = token
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def send(self, method: str, path: str, *, key: str = "", body: dict[str, str] | None = None) -> Response:
        """Send one request and return its response.

        Raises CommandError if the API does not respond.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        started_at = time.perf_counter()
        try:
            self._connection.request(method, self._path + path, json.dumps(body) if body else None, headers)
            response = self._connection.getresponse()
            text = response.read().decode()
        except OSError as error:
            raise CommandError(f"The API does not respond: {error}", hint="Start the stack with `make up`.") from error
        milliseconds = (time.perf_counter() - started_at) * 1000
        replayed = response.headers.get("Idempotent-Replayed", "") == "true"
        return Response(response.status, replayed, text, milliseconds)


def demo(_arguments: Sequence[str], progress: Progress) -> int:
    """Grant, replay, revoke and list an entitlement, and print each request with its response."""
    stack = read_description()
    client = Client(stack["api_url"], stack["token"])
    run = secrets.token_hex(3)
    user, key, revoke_key = f"u_{run}", f"p_{run}", f"r_{run}"
    body = {"user_id": user, "stock_keeping_unit": "sku_pro", "reason": "PURCHASE", "purchase_id": key}
    other = {**body, "stock_keeping_unit": "sku_other"}
    refund = {**body, "reason": "REFUND"}
    for path in (GRANTS, REVOKES):
        client.send("POST", path)  # a bad request, but it starts the function's process
    for name in ("entitlements", "summary"):
        client.send("GET", f"/v1/users/{user}/{name}")

    def post(title: str, path: str, key: str, body: dict[str, str]) -> None:
        progress.print_line(f"\n{title}\n  POST {path}  Idempotency-Key: {key}\n  {json.dumps(body)}")
        _print_response(client.send("POST", path, key=key, body=body), progress)

    post("Grant an entitlement.", GRANTS, key, body)
    post("Repeat the request: the stored response is replayed, nothing changes.", GRANTS, key, body)
    post("Same key, different request: a key conflict.", GRANTS, key, other)
    post("New key, but the entitlement is already ACTIVE: a state conflict.", GRANTS, f"{key}b", body)
    post("Revoke the entitlement.", REVOKES, revoke_key, refund)
    post("Repeat the first request: its stored response is still replayed.", GRANTS, key, body)
    _show_an_end(client, user, progress)
    progress.print_line(f"\nList the user's entitlements.\n  GET /v1/users/{user}/entitlements")
    _print_response(client.send("GET", f"/v1/users/{user}/entitlements"), progress)
    progress.print_line("\nThe events, from commit to delivery.")
    _print_event_steps(stack["database_url"], user, progress)
    progress.print_line(f"\nThe user's summary, from the read model.\n  GET /v1/users/{user}/summary")
    _print_response(client.send("GET", f"/v1/users/{user}/summary"), progress)
    progress.print_line(f"\nThe user's notifications.\n  GET {INBOX}/{user}")
    _print_response(client.send("GET", f"{INBOX}/{user}"), progress)
    return 0


def _show_an_end(client: Client, user: str, progress: Progress) -> None:
    """Grant an entitlement that ends within seconds, and print its status until it has ended."""
    expires_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=RENTAL_SECONDS)
    body = {"user_id": user, "stock_keeping_unit": "sku_rental", "reason": "PURCHASE", "purchase_id": f"rental_{user}"}
    end = expires_at.isoformat(timespec="seconds").replace("+00:00", "Z")
    progress.print_line(f"\nGrant an entitlement that ends in {RENTAL_SECONDS} seconds.\n  POST {GRANTS}")
    _print_response(client.send("POST", GRANTS, key=body["purchase_id"], body={**body, "expires_at": end}), progress)
    progress.print_line("\nIts status until it has ended, by the database's clock.")
    status, deadline = "", time.monotonic() + RENTAL_SECONDS + 5
    while status != "EXPIRED" and time.monotonic() < deadline:
        listed = json.loads(client.send("GET", f"/v1/users/{user}/entitlements").body)["entitlements"]
        now = next(each["status"] for each in listed if each["stock_keeping_unit"] == "sku_rental")
        if now != status:
            progress.print_line(f"  {dt.datetime.now(dt.UTC):%H:%M:%S.%f} UTC  {now}")
        status = now
        time.sleep(0.1)


def _print_response(response: Response, progress: Progress) -> None:
    replayed = ", Idempotent-Replayed: true" if response.replayed else ""
    progress.print_line(f"  → {response.status}{replayed}  ({response.milliseconds:.0f} ms)\n  {response.body}")


def _print_event_steps(database_url: str, user: str, progress: Progress) -> None:
    """Wait until the user's events are delivered, and print the time of each step."""
    deadline = time.monotonic() + DELIVERY_TIMEOUT_SECONDS
    with psycopg.connect(database_url, autocommit=True) as connection:
        while True:
            events = connection.execute(EVENT_STEPS, [user]).fetchall()
            if all(sent is not None for *_, sent in events) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    for event_type, committed, *steps in events:
        names = ("published", "recorded in the inbox", "delivered")
        times = ", ".join(
            f"{name} after {step:.0f} ms" if step is not None else f"not {name} yet"
            for name, step in zip(names, steps, strict=True)
        )
        progress.print_line(f"  {event_type}: committed {committed:%H:%M:%S}, {times}")
