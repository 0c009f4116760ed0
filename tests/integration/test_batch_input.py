"""K6, E5: malformed batches are refused as a whole, and invalid items have a result of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import BATCHES, CHANGE, EXTENSIONS, GRANTS, REVOKES, Client, event, item
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

pytestmark = newest_postgres  # no invalid item reaches the database

ROUTES = {"grant": GRANTS, "revoke": REVOKES, "extend": EXTENSIONS}


@pytest.fixture(autouse=True)
def _assert_nothing_is_written(rows: Rows) -> Iterator[None]:
    yield
    for table in ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys", "key_conflicts"):
        assert rows.execute(f"SELECT * FROM {table}").fetchall() == [], table  # noqa: S608


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no operation": ({"idempotency_key": "k"} | CHANGE, "operation is missing"),
    "no key": ({"operation": "grant"} | CHANGE, "idempotency_key is missing"),
    "unknown operation": (item("k", "delete"), "operation must be one of: grant, revoke, extend"),
    "upper case operation": (item("k", "GRANT"), "operation must be one of: grant, revoke, extend"),
    "operation is a list": (item("k") | {"operation": ["grant"]}, "operation must be one of: grant, revoke, extend"),
    "operation is null": (item("k") | {"operation": None}, "operation must be one of: grant, revoke, extend"),
    "key is a number": (item("k") | {"idempotency_key": 7}, "idempotency_key must be a string"),
    "key is null": (item("k") | {"idempotency_key": None}, "idempotency_key must be a string"),
    "empty key": (item(""), "idempotency_key must not be empty; send a UUID or the purchase_id"),
    "blank key": (item("  "), "idempotency_key must not be empty; send a UUID or the purchase_id"),
    "long key": (item("x" * 256), "idempotency_key must have at most 255 characters"),
    "key not ASCII": (item("käse"), "idempotency_key must contain only printable ASCII characters"),
    "key with NUL": (item("a\x00b"), "idempotency_key must contain only printable ASCII characters"),
    "key like two headers": (item("a, b"), "idempotency_key must not contain a comma before a space"),
    "key with white space": (item(" k"), "idempotency_key must not begin or end with white space"),
    "empty item": ({}, "operation is missing"),
    "missing field": ({"operation": "revoke", "idempotency_key": "k"}, "user_id is missing"),
    "unknown field": (item("k", extra=1), "unknown field 'extra'; allowed: user_id, stock_keeping_unit"),
    "times of a revoke": (item("k", "revoke", expires_at=None), "unknown field 'expires_at'; allowed: user_id"),
    "extension without end": (item("k", "extend"), "expires_at is missing"),
    "control character": (item("k", user_id="a\x00"), "user_id must not contain control"),
    "lone surrogate": (item("k", user_id="a\ud800"), "user_id must not contain control"),
    "end in the past": (item("k", expires_at="2020-01-01T00:00:00Z"), "expires_at must be in the future"),
    "end before start": (
        item("k", expires_at="2098-01-01T00:00:00Z", starts_at="2099-01-01T00:00:00Z"),
        "expires_at must be after starts_at",
    ),
}


def test_invalid_item_is_a_result_with_status_400(client: Client, subtests: pytest.Subtests) -> None:
    """K6, E5, I3: the message names the field and is that of the single route, where that has the field."""
    for case, (sent, message) in INVALID.items():
        with subtests.test(case):
            response = client.batch(sent)
            (result,) = response.json["results"]
            assert (response.status, result["status_code"], result["replayed"]) == (200, 400, False)
            assert result["response"]["code"] == "BAD_REQUEST"
            assert result["response"]["message"].startswith(message)
            if message.startswith(("operation", "idempotency_key")):
                continue
            fields = {name: value for name, value in sent.items() if name not in {"operation", "idempotency_key"}}
            body = json.dumps(fields)
            alone = client.send(event("POST", ROUTES[sent["operation"]], headers={"Idempotency-Key": "k"}, body=body))
            assert alone.json == result["response"]


ENVELOPES: dict[str, tuple[Any, str]] = {
    "no items": ({}, "items is missing"),
    "items null": ({"items": None}, "items must be an array of 1 to 100 objects"),
    "items an object": ({"items": {"0": item("k")}}, "items must be an array of 1 to 100 objects"),
    "items a string": ({"items": "grant"}, "items must be an array of 1 to 100 objects"),
    "empty": ({"items": []}, "items must be an array of 1 to 100 objects"),
    "too many": ({"items": [item(f"k{n}") for n in range(101)]}, "items must be an array of 1 to 100 objects"),
    "an item is null": ({"items": [item("k1"), None]}, "items[1] must be an object"),
    "an item is a list": ({"items": [item("k1"), item("k2"), item("k3"), []]}, "items[3] must be an object"),
    "an item is a string": ({"items": ["grant"]}, "items[0] must be an object"),
    "unknown field": ({"items": [item("k1")], "dry_run": True}, "unknown field 'dry_run'; allowed: atomic, items"),
    "strange field": ({"items": [item("k1")], "\ud800" * 500: 1}, "unknown field '\\ud800"),
    "atomic a string": ({"items": [item("k1")], "atomic": "true"}, "atomic must be true or false"),
    "atomic a number": ({"items": [item("k1")], "atomic": 1}, "atomic must be true or false"),
    "atomic null": ({"items": [item("k1")], "atomic": None}, "atomic must be true or false"),
    "an array": ([item("k1")], "the body must be a JSON object"),
}


def test_malformed_batch_is_refused_as_a_whole(client: Client, subtests: pytest.Subtests) -> None:
    """K6, E5: 400 with the name of the field; nothing is executed."""
    for case, (body, message) in ENVELOPES.items():
        with subtests.test(case):
            response = client.send(event("POST", BATCHES, body=json.dumps(body)))
            assert (response.status, response.code) == (400, "BAD_REQUEST")
            assert response.json["message"].startswith(message)


def test_body_that_is_not_strict_json_is_refused(client: Client, subtests: pytest.Subtests) -> None:
    """E5: as on the single routes."""
    for body in ("", "{", '{"items":[NaN]}', '{"items":[{"a":1,"a":2}]}', "[" * 9000, '{"items":[],"items":[]}'):
        with subtests.test(body=body[:30]):
            response = client.send(event("POST", BATCHES, body=body))
            assert (response.status, response.code) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_wrong_method_is_405(client: Client, method: str) -> None:
    """E5: with the allowed method."""
    response = client.send(event(method, BATCHES, body=json.dumps({"items": [item("k1")]})))
    assert (response.status, response.code, response.headers["Allow"]) == (405, "METHOD_NOT_ALLOWED", "POST")
