"""Calls that the clients of a fleet make: each invokes a handler with an event and checks the response.

By default a client uses the handler that Lambda would import, which reads the environment of its process.
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

# The users that `make_query_call` queries.
USERS = 1_000
ENTITLEMENTS_PER_USER = 10
# The pairs that each call of `make_checks_call` checks.
CHECKS_PER_CALL = 200
# The keys that each client of `make_replay_call` replays.
KEYS_PER_CLIENT = 100
# The items in each batch of `make_batch_call`.
BATCH_SIZE = 100
# Environment variable with the address of Valkey.
VALKEY_URL = "BENCH_VALKEY_URL"


def load_handler(name: str) -> Any:
    """Import the handler of a function as Lambda would. The import may read the environment."""
    return import_module(f"functions.{name}.handler").handler


def load_event(name: str) -> dict[str, Any]:
    """Return the example event of a function, from infra/events."""
    event: dict[str, Any] = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    return event


def build_grant_event(event: dict[str, Any], key: str, user: str) -> dict[str, Any]:
    """Return `event`, a grant, with this user and idempotency key."""
    body = f'{{"user_id":"{user}","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"{user}"}}'
    headers = event["headers"] | {"Idempotency-Key": key}
    return event | {"headers": headers, "multiValueHeaders": {k: [v] for k, v in headers.items()}, "body": body}


def query_user(handler: Handler, event: dict[str, Any], user: str, entitlements: int) -> None:
    """Query a user and check the number of active entitlements."""
    response = handler(event | {"pathParameters": {"user_id": user}}, None)
    assert response["body"].count('"ACTIVE"') == entitlements, response


def summarize_user(handler: Handler, event: dict[str, Any], active: int) -> None:
    """Read a user's summary and check the number of active entitlements."""
    response = handler(event, None)
    assert f'"active":{active},' in response["body"], response


def replay_request(handler: Handler, event: dict[str, Any], body: str) -> None:
    """Repeat a request and check that the stored response with this body is replayed."""
    response = handler(event, None)
    assert response["body"] == body and "Idempotent-Replayed" in response["headers"], response  # noqa: PT018


def check_item(handler: Handler, event: dict[str, Any], user: str, item: str) -> None:
    """Check an entitlement, which must be active."""
    response = handler(event | {"pathParameters": {"user_id": user, "stock_keeping_unit": item}}, None)
    assert '"allowed":true,' in response["body"], response


def make_grant_call(number: int, handler: Handler | None = None) -> Call:
    """Return a call that grants an entitlement to a new user each time."""
    handler = handler or load_handler("grant")
    event = load_event("grant")
    names = (f"u_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        name = next(names)
        response = handler(build_grant_event(event, name, name), None)
        assert response["statusCode"] == 200, response

    return call


def make_batch_call(number: int, handler: Handler | None = None) -> Call:
    """Return a call that grants entitlements to new users, in one batch each time."""
    handler = handler or load_handler("change_batch")
    event = load_event("change_batch")
    turns = itertools.count()

    def call() -> None:
        turn = next(turns)
        names = (f"b_{os.getpid()}_{number}_{turn}_{position}" for position in range(BATCH_SIZE))
        items = [
            f'{{"operation":"grant","idempotency_key":"{name}","user_id":"{name}","stock_keeping_unit":"item1",'
            f'"reason":"purchase","purchase_id":"{name}"}}'
            for name in names
        ]
        response = handler(event | {"body": f'{{"items":[{",".join(items)}]}}'}, None)
        assert response["body"].count('"status_code":200,"replayed":false') == BATCH_SIZE, response

    return call


def make_replay_call(number: int, handler: Handler | None = None) -> Call:
    """Send grants, and return a call that repeats one of them each time."""
    handler = handler or load_handler("grant")
    names = [f"r_{os.getpid()}_{number}_{turn}" for turn in range(KEYS_PER_CLIENT)]
    events = [build_grant_event(load_event("grant"), name, name) for name in names]
    turns = itertools.cycle([(event, handler(event, None)["body"]) for event in events])
    return lambda: replay_request(handler, *next(turns))


def make_query_call(number: int, handler: Handler | None = None) -> Call:
    """Return a call that queries the next user each time."""
    handler = handler or load_handler("query")
    event = load_event("query")
    users = itertools.cycle(f"q_{(number * 97 + turn) % USERS}" for turn in range(USERS))
    return lambda: query_user(handler, event, next(users), ENTITLEMENTS_PER_USER)


def make_check_call(number: int, handler: Handler | None = None) -> Call:
    """Return a call that checks an entitlement of the next user each time."""
    handler = handler or load_handler("check_entitlement")
    event = load_event("check_entitlement")
    pairs = itertools.cycle(_pairs(number))
    return lambda: check_item(handler, event, *next(pairs))


def make_checks_call(number: int, handler: Handler | None = None) -> Call:
    """Return a call that checks entitlements of many users each time."""
    handler = handler or load_handler("check_entitlement")
    pairs = itertools.cycle({"user_id": user, "stock_keeping_unit": item} for user, item in _pairs(number))
    path = "/v1/entitlements/checks"
    event = load_event("check_entitlement") | {"httpMethod": "POST", "resource": path, "pathParameters": None}

    def call() -> None:
        body = json.dumps({"checks": list(itertools.islice(pairs, CHECKS_PER_CALL))})
        response = handler(event | {"body": body}, None)
        assert response["body"].count('"allowed":true,') == CHECKS_PER_CALL, response

    return call


def _pairs(number: int) -> list[tuple[str, str]]:
    """Return every user with one of the entitlements, beginning at another user for each client."""
    return [(f"q_{(number * 97 + turn) % USERS}", f"item{turn % ENTITLEMENTS_PER_USER + 1}") for turn in range(USERS)]
