"""What the clients of a fleet do: one call of a handler, event in and answer out, which is looked at.

A client uses the handler that Lambda would, which reads its process's environment, unless it is given another one.
"""

from __future__ import annotations

import itertools
import json
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Call = Callable[[], None]
    Handler = Callable[[Mapping[str, Any], Any], dict[str, Any]]

# Users with as many rights each, whom `query` asks for.
USERS = 1_000
RIGHTS = 10
# What each client of `replay` has granted before.
KEPT_KEYS = 100
# The variable that tells clients where Valkey is.
VALKEY_URL = "BENCH_VALKEY_URL"


def handler_of(name: str) -> Any:
    """A function's handler as Lambda would import it: now, because it may read the environment."""
    return import_module(f"functions.{name}.handler").handler


def event_of(name: str) -> dict[str, Any]:
    """The event that the repository has for each function."""
    event: dict[str, Any] = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    return event


def granting(event: dict[str, Any], key: str, user: str) -> dict[str, Any]:
    """A request to grant a user something, under this key."""
    body = f'{{"user_id":"{user}","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"{user}"}}'
    headers = event["headers"] | {"Idempotency-Key": key}
    return event | {"headers": headers, "multiValueHeaders": {k: [v] for k, v in headers.items()}, "body": body}


def ask(handler: Handler, event: dict[str, Any], user: str, rights: int) -> None:
    """Ask for the rights of a user, who has so many."""
    answer = handler(event | {"pathParameters": {"user_id": user}}, None)
    assert answer["body"].count('"ACTIVE"') == rights, answer


def repeat(handler: Handler, event: dict[str, Any], body: str) -> None:
    """Send a request again that was answered with this body."""
    answer = handler(event, None)
    assert answer["body"] == body and "Idempotent-Replayed" in answer["headers"], answer  # noqa: PT018


def grant(number: int, handler: Handler | None = None) -> Call:
    """Grant somebody something, again and again."""
    handler = handler or handler_of("grant")
    event = event_of("grant")
    names = (f"u_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        name = next(names)
        answer = handler(granting(event, name, name), None)
        assert answer["statusCode"] == 200, answer

    return call


def replay(number: int, handler: Handler | None = None) -> Call:
    """Send grants again that were answered before."""
    handler = handler or handler_of("grant")
    names = [f"r_{os.getpid()}_{number}_{turn}" for turn in range(KEPT_KEYS)]
    events = [granting(event_of("grant"), name, name) for name in names]
    turns = itertools.cycle([(event, handler(event, None)["body"]) for event in events])
    return lambda: repeat(handler, *next(turns))


def query(number: int, handler: Handler | None = None) -> Call:
    """Ask for the rights of one user after the other."""
    handler = handler or handler_of("query")
    event = event_of("query")
    users = itertools.cycle(f"q_{(number * 97 + turn) % USERS}" for turn in range(USERS))
    return lambda: ask(handler, event, next(users), RIGHTS)
