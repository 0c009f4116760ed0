"""E5: every invalid request gets a 4xx response with a code and a message, and nothing is written."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS, REVOKES, Client, Response, event
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

pytestmark = newest_postgres  # no invalid request reaches the database

_TABLES = ("entitlements", "outbox_events", "entitlement_audit", "idempotency_keys")


@pytest.fixture(autouse=True)
def _assert_nothing_is_written(rows: Rows) -> Iterator[None]:
    yield
    for table in _TABLES:
        assert rows.execute(f"SELECT * FROM {table}").fetchall() == [], table  # noqa: S608


BODIES: dict[str, tuple[Any, str]] = {
    "no body": (None, "valid JSON"),
    "empty": ("", "valid JSON"),
    "not JSON": ("user_id=u_123", "valid JSON"),
    "cut off": ('{"user_id":"u_1', "valid JSON"),
    "two documents": ("{}{}", "valid JSON"),
    "a number": ("42", "JSON object"),
    "an array": (json.dumps([CHANGE]), "JSON object"),
    "null": ("null", "JSON object"),
    "a string": ('"u_123"', "JSON object"),
    "NaN": ('{"user_id":NaN}', "valid JSON"),
    "Infinity": ("-Infinity", "valid JSON"),
    "a huge number": ("9" * 5000, "valid JSON"),
    "nested too deep": ("[" * 8000, "valid JSON"),
    "a duplicate key": ('{"user_id":"a","user_id":"b"}', 'duplicate key in JSON body: "user_id"'),
    "a control character between quotes": ('{"user_id":"a\nb"}', "valid JSON"),
    "a lone surrogate in the text itself": ('{"user_id":"\ud800"}', "UTF-8"),
}

FIELDS: dict[str, tuple[Any, str]] = {
    "null": (None, "must be a string"),
    "a number": (7, "must be a string"),
    "a boolean": (True, "must be a string"),
    "an array": (["u_123"], "must be a string"),
    "an object": ({"id": "u_123"}, "must be a string"),
    "empty": ("", "must not be empty"),
    "blank": (" \u3000", "must not be empty"),
    "NUL": ("a\x00b", "(found U+0000)"),
    "a line break": ("a\nb", "(found U+000A)"),
    "an escape": ("\x1b[31m", "(found U+001B)"),
    "DEL": ("a\x7f", "(found U+007F)"),
    "a C1 control": ("a\x85b", "(found U+0085)"),
    "a lone high surrogate": ("a\ud83d", "(found U+D83D)"),
    "a lone low surrogate": ("\udc00a", "(found U+DC00)"),
}


def assert_rejected(response: Response, message: str) -> None:
    """Check status, code and message."""
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert message in response.json["message"]


@pytest.mark.parametrize("path", [GRANTS, REVOKES])
def test_body_must_be_a_json_object(client: Client, path: str, subtests: pytest.Subtests) -> None:
    """A body that is not JSON, not UTF-8, not an object, or ambiguous is rejected."""
    for case, (body, message) in BODIES.items():
        with subtests.test(case):
            response = client.send(event("POST", path, headers={"Idempotency-Key": "k1"}, body=body))
            assert_rejected(response, message)


@pytest.mark.parametrize("field", CHANGE)
def test_invalid_field_is_rejected_by_name(client: Client, field: str, subtests: pytest.Subtests) -> None:
    """Every field has the same rules, and the message names the field."""
    for case, (value, message) in FIELDS.items():
        with subtests.test(case):
            response = client.grant("k1", **{field: value})
            assert_rejected(response, message)
            assert response.json["message"].startswith(f"{field} ")


@pytest.mark.parametrize(
    ("field", "max_length"),
    [("user_id", 128), ("stock_keeping_unit", 128), ("purchase_id", 128), ("reason", 64)],
)
def test_field_must_not_exceed_its_maximum_length(client: Client, field: str, max_length: int) -> None:
    """Lengths are counted in characters, not in bytes."""
    response = client.revoke("k1", **{field: "字" * (max_length + 1)})
    assert response.json == {"code": "BAD_REQUEST", "message": f"{field} must have at most {max_length} characters"}


@pytest.mark.parametrize("field", CHANGE)
def test_missing_field_is_rejected_by_name(client: Client, field: str) -> None:
    """All four fields are required."""
    body = json.dumps({name: value for name, value in CHANGE.items() if name != field})
    response = client.send(event("POST", GRANTS, headers={"Idempotency-Key": "k1"}, body=body))
    assert response.json == {"code": "BAD_REQUEST", "message": f"{field} is missing"}


@pytest.mark.parametrize("name", ["quantity", "User_id", "", "\ud800", "x" * 500, "\x00"])
def test_unknown_field_is_rejected(client: Client, name: str) -> None:
    """A misspelt field must not be ignored."""
    response = client.grant("k1", **{name: "1"})
    assert response.status == 400
    assert response.json["message"].startswith("unknown field ")


INVALID_KEYS: list[tuple[dict[str, list[str]], str]] = [
    ({}, "is missing"),
    ({"Idempotency-Key": [""]}, "is missing"),
    ({"Idempotency-Key": ["   "]}, "is missing"),
    ({"Idempotency-Key": ["x" * 256]}, "at most 255"),
    ({"Idempotency-Key": ["x" * 300]}, "at most 255"),
    ({"Idempotency-Key": ["käse"]}, "printable ASCII"),
    ({"Idempotency-Key": ["a\x00b"]}, "printable ASCII"),
    ({"Idempotency-Key": ["a\tb"]}, "printable ASCII"),
    ({"Idempotency-Key": ["k1", "k2"]}, "exactly once"),
    ({"Idempotency-Key": ["k1", "k1"]}, "exactly once"),
    ({"Idempotency-Key": ["k1, k2"]}, "exactly once"),
]


def test_invalid_idempotency_key_is_rejected(client: Client, subtests: pytest.Subtests) -> None:
    """Missing, empty, too long, not printable, or more than one."""
    for headers, message in INVALID_KEYS:
        with subtests.test(headers=headers):
            response = client.send(event("POST", GRANTS, multiValueHeaders=headers, body=json.dumps(CHANGE)))
            assert_rejected(response, message)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("size", [16 * 1024 + 1, 1_000_000])
def test_body_that_is_too_large_is_rejected(client: Client, size: int, *, encoded: bool) -> None:
    """16 KiB are enough for every valid request. A larger body is not parsed."""
    body = " " * size
    if encoded:
        body = base64.b64encode(body.encode()).decode()
    response = client.send(event("POST", GRANTS, headers={"Idempotency-Key": "k1"}, body=body, isBase64Encoded=encoded))
    assert (response.status, response.code) == (413, "TOO_LARGE")


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b"\x00"])
def test_binary_body_is_rejected(client: Client, raw: bytes) -> None:
    """API Gateway passes binary media types as base64."""
    body = base64.b64encode(raw).decode()
    response = client.send(event("POST", GRANTS, headers={"Idempotency-Key": "k1"}, body=body, isBase64Encoded=True))
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    garbled = client.send(event("POST", GRANTS, headers={"Idempotency-Key": "k1"}, body="?", isBase64Encoded=True))
    assert (garbled.status, garbled.code) == (400, "BAD_REQUEST")


INVALID_QUERIES: list[tuple[str, dict[str, list[str]], str]] = [
    ("", {}, "user_id must not be empty"),
    ("x" * 129, {}, "user_id must have at most 128"),
    ("a%00b", {}, "user_id must not contain control, bidirectional, invisible or replacement characters"),
    ("%ff", {}, "user_id must not contain control, bidirectional, invisible or replacement characters"),
    ("u", {"limit": ["0"]}, "limit must be"),
    ("u", {"limit": ["1001"]}, "limit must be"),
    ("u", {"limit": ["-1"]}, "limit must be"),
    ("u", {"limit": ["ten"]}, "limit must be"),
    ("u", {"limit": ["²"]}, "limit must be"),
    ("u", {"limit": [""]}, "limit must be"),
    ("u", {"limit": ["9" * 5000]}, "limit must be"),
    ("u", {"limit": ["1", "2"]}, "limit must be given once"),
    ("u", {"after": [""]}, "after must not be empty"),
    (
        "u",
        {"after": ["a\x00"]},
        "after must not contain control, bidirectional, invisible",
    ),
    ("u", {"Limit": ["1"]}, "unknown query parameter"),
]


def test_invalid_query_parameter_is_rejected(client: Client, subtests: pytest.Subtests) -> None:
    """The route that lists entitlements validates its path and its query parameters."""
    for user_id, query, message in INVALID_QUERIES:
        page = {"pathParameters": {"user_id": user_id}, "multiValueQueryStringParameters": query}
        with subtests.test(user_id=user_id, query=query):
            assert_rejected(client.send(event("GET", ENTITLEMENTS, **page)), message)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_wrong_method_is_rejected(client: Client, method: str) -> None:
    """The response has status 405 and names the allowed method."""
    response = client.send(event(method, GRANTS, headers={"Idempotency-Key": "k1"}, body=json.dumps(CHANGE)))
    assert (response.status, response.code) == (405, "METHOD_NOT_ALLOWED")
    assert response.headers["Allow"] == "POST"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CHANGE, "x"]), inner, max_size=5),
        max_leaves=10,
    ),
    key=st.text(st.characters(codec="utf-8"), max_size=300),
)
def test_no_input_causes_a_server_error(client: Client, rows: Rows, body: object, key: str) -> None:
    """Any JSON with any key gets a 400, or is a valid grant, which the test then removes."""
    response = client.send(event("POST", GRANTS, headers={"Idempotency-Key": key}, body=json.dumps(body)))
    assert response.status in {200, 400}
    if response.status == 200:
        rows.execute("TRUNCATE entitlements, outbox_events, entitlement_audit, idempotency_keys")
