"""What the clients of a fleet do: one call of a handler, event in and answer out, which is looked at."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any

from grantwire.entitlements import Change, Operation
from grantwire.idempotency import RequestIdentity
from grantwire.runtime.api import ApiRuntime
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], None]

# Users with as many rights each, whom `query` asks for.
USERS = 1_000
RIGHTS = 10
# What each client of `replay` has granted before.
KEPT_KEYS = 100
# The variable that tells clients where Valkey is.
VALKEY_URL = "BENCH_VALKEY_URL"


def _event(name: str) -> dict[str, Any]:
    """A REST proxy event as the repository has one for each function."""
    event: dict[str, Any] = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    return event


def _granting(event: dict[str, Any], name: str) -> dict[str, Any]:
    """A grant with a key, a user and a purchase of its own."""
    body = f'{{"user_id":"{name}","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"{name}"}}'
    headers = event["headers"] | {"Idempotency-Key": name}
    return event | {"headers": headers, "multiValueHeaders": {k: [v] for k, v in headers.items()}, "body": body}


def grant(number: int) -> Call:
    """Grant somebody something, again and again."""
    from functions.grant.handler import handler  # noqa: PLC0415 - reads the environment

    event = _event("grant")
    names = (f"u_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        answer = handler(_granting(event, next(names)), None)
        assert answer["statusCode"] == 200, answer

    return call


def replay(number: int) -> Call:
    """Send grants again that were answered before."""
    from functions.grant.handler import handler  # noqa: PLC0415 - reads the environment

    events = [_granting(_event("grant"), f"r_{os.getpid()}_{number}_{turn}") for turn in range(KEPT_KEYS)]
    bodies = [handler(event, None)["body"] for event in events]
    turns = itertools.cycle(zip(events, bodies, strict=True))

    def call() -> None:
        event, body = next(turns)
        answer = handler(event, None)
        assert answer["body"] == body and "Idempotent-Replayed" in answer["headers"], answer  # noqa: PT018

    return call


def replay_call(number: int) -> Call:
    """The database call of a replay alone, without an event, a log line or an answer around it."""
    runtime = ApiRuntime.build(os.environ)
    identity = RequestIdentity("local", "POST /v1/entitlements/grants", f"c_{os.getpid()}_{number}", "v1:0")
    change = Change(identity.key, "item1", "purchase", identity.key)
    runtime.entitlements.change(Operation.GRANT, change, identity, "1-0-0")

    def call() -> None:
        assert runtime.entitlements.change(Operation.GRANT, change, identity, "1-0-0").replayed

    return call


def query(number: int) -> Call:
    """Ask for the rights of one user after the other."""
    from functions.query.handler import handler  # noqa: PLC0415 - reads the environment

    event = _event("query")
    users = itertools.cycle(f"q_{(number * 97 + turn) % USERS}" for turn in range(USERS))

    def call() -> None:
        answer = handler(event | {"pathParameters": {"user_id": next(users)}}, None)
        assert answer["body"].count('"ACTIVE"') == RIGHTS, answer

    return call
