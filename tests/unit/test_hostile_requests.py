"""E5: every request gets one of the documented responses, and nothing is written unless the status is 200."""

from __future__ import annotations

import base64
import json
import tomllib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.grant.handler import handler as grant
from functions.query.handler import handler as query
from grantwire.api.request import MAX_BODY_BYTES, Request
from grantwire.clients.scopes import Scope
from grantwire.entitlements import ChangeCommand, Entitlements, ListRequest, Operation
from grantwire.errors import BadRequestError, RejectedError, TooLargeError
from grantwire.idempotency import RequestIdentity, StoredResponse, parse_key
from grantwire.wiring.routes.entitlements import ApiRuntime
from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS, event
from tests.support.paths import FUNCTIONS, LAYER, LIBRARY, ROOT

# The deadline finds a parser that hangs, and is long enough for a busy machine.
HYPOTHESIS_SETTINGS = settings(deadline=timedelta(seconds=5), max_examples=100)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
# Headers that HTTP and API Gateway accept: names are tokens, values are text of any charset.
HEADERS = st.dictionaries(
    st.sampled_from(["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY", "X-Amzn-Trace-Id", "Content-Type", "X"]),
    ANY_TEXT,
    max_size=6,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(ANY_TEXT, inner, max_size=5),
    max_leaves=20,
)
# Changes in which each field may be missing or have any type.
ALMOST_CHANGES = st.fixed_dictionaries({}, optional=dict.fromkeys(CHANGE, JSON) | {"else": JSON})
BODIES = (
    st.none()
    | ANY_TEXT
    | JSON.map(json.dumps)
    | ALMOST_CHANGES.map(json.dumps)
    | ALMOST_CHANGES.map(lambda change: json.dumps(CHANGE | change))
    | st.binary(max_size=300).map(lambda raw: base64.b64encode(raw).decode())
)


class FakeEntitlements(Entitlements):
    """A replacement of the database that records all calls."""

    def __init__(self) -> None:
        self.changes: list[tuple[ChangeCommand, RequestIdentity]] = []
        self.requests: list[ListRequest] = []

    def change(
        self,
        command: ChangeCommand,
        identity: RequestIdentity,
        trace_id: str,
        source_address: str | None = None,  # noqa: ARG002 - the signature of Entitlements.change
        correlation_id: str | None = None,  # noqa: ARG002
    ) -> StoredResponse:
        """Record the change and return a response with status 200."""
        assert (command.operation, bool(trace_id)) == (Operation.GRANT, True)
        self.changes.append((command, identity))
        return StoredResponse(200, "{}")

    def list_for_user(self, request: ListRequest) -> str:
        """Record the request and return an empty object."""
        self.requests.append(request)
        return "{}"


def _respond(handler: Any, sent: dict[str, Any]) -> tuple[int, Any, FakeEntitlements]:
    entitlements = FakeEntitlements()
    http_handler = handler.with_runtime(ApiRuntime(entitlements))
    response = http_handler.respond(Request.from_api_gateway(sent)).to_api_gateway()
    return response["statusCode"], json.loads(response["body"]), entitlements


@HYPOTHESIS_SETTINGS
@given(headers=HEADERS, body=BODIES, is_base64=st.booleans())
@example(headers={"Idempotency-Key": "k"}, body="[" * MAX_BODY_BYTES, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body='{"a":' * 3000, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body='{"user_id":' + "9" * 5000 + "}", is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body="é" * MAX_BODY_BYTES, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body="A" * (MAX_BODY_BYTES * 2), is_base64=True)
@example(headers={"Idempotency-Key": "k"}, body=json.dumps(CHANGE), is_base64=False)
def test_any_change_is_valid_or_rejected_with_a_reason(
    headers: dict[str, str], body: str | None, is_base64: bool
) -> None:
    """E5: either 400 or 413 with code and message and nothing written, or a change that satisfies all rules."""
    status, error, entitlements = _respond(
        grant, event("POST", GRANTS, headers=headers, body=body, isBase64Encoded=is_base64)
    )
    if status == 200:
        ((change, identity),) = entitlements.changes
        assert all(1 <= len(value) <= 128 for value in change.fields().values())
        assert 1 <= len(identity.key) <= 255
        assert identity.key.isascii()
        assert identity.caller == "tests"
    else:
        assert entitlements.changes == []
        assert (status, error["code"]) in {(400, "BAD_REQUEST"), (413, "TOO_LARGE")}
        assert error["message"]


@HYPOTHESIS_SETTINGS
@given(
    user_id=ANY_TEXT,
    names=st.dictionaries(
        st.sampled_from(["limit", "after", "status", "prefix", "x", "", "Limit"]), st.lists(ANY_TEXT, max_size=3)
    ),
)
@example(user_id="%00", names={})
@example(user_id="%C3%28", names={})
@example(user_id="%ED%A0%80", names={})
@example(user_id="u", names={"limit": ["٣"]})
@example(user_id="u", names={"limit": ["9" * 5000]})
@example(user_id="u", names={"limit": []})
def test_any_query_is_valid_or_rejected_with_a_reason(user_id: str, names: dict[str, list[str]]) -> None:
    """E4, E5: the page size is always limited, and PostgreSQL can store every accepted name."""
    sent = event(
        "GET", ENTITLEMENTS, pathParameters={"user_id": user_id}, multiValueQueryStringParameters=names or None
    )
    status, error, entitlements = _respond(query, sent)
    if status == 200:
        (asked,) = entitlements.requests
        assert 1 <= asked.page.limit <= 1000
        assert asked.status in {None, "SCHEDULED", "ACTIVE", "EXPIRED", "REVOKED"}
        for name in (asked.page.user_id, asked.page.after or "none", asked.prefix or "none"):
            assert 1 <= len(name) <= 128
            assert "\0" not in name.encode().decode()
    else:
        assert (status, error["code"], entitlements.requests) == (400, "BAD_REQUEST", [])


@HYPOTHESIS_SETTINGS
@given(
    caller=st.none() | st.dictionaries(st.sampled_from(["principalId", "scopes", "x"]), st.none() | ANY_TEXT),
    method=st.sampled_from(["POST", "GET", "DELETE", ""]),
)
def test_caller_without_name_or_scope_writes_nothing(caller: dict[str, Any] | None, method: str) -> None:
    """I7: this holds for any context that API Gateway passes to the function."""
    sent = event(
        method,
        GRANTS,
        headers={"Idempotency-Key": "k"},
        body=json.dumps(CHANGE),
        requestContext={"requestId": "r", "authorizer": caller},
    )
    status, error, entitlements = _respond(grant, sent)
    has_name = bool(caller and caller.get("principalId"))
    has_scope = bool(caller and Scope.WRITE_ENTITLEMENTS in str(caller.get("scopes") or "").split())
    if not has_name:
        assert (status, error["code"]) == (401, "UNAUTHENTICATED")
    elif not has_scope:
        assert (status, error["code"]) == (403, "FORBIDDEN")
    else:
        assert status == (200 if method == "POST" else 405)
    assert bool(entitlements.changes) == (status == 200)


@HYPOTHESIS_SETTINGS
@given(st.lists(ANY_TEXT, max_size=3))
def test_idempotency_key_is_one_printable_line_or_rejected(values: list[str]) -> None:
    """E5, I7: no accepted key can be interpreted differently by two proxies."""
    try:
        key = parse_key(values)
    except BadRequestError:
        return
    assert values == [values[0]]
    assert key == values[0].strip()
    assert 1 <= len(key) <= 255
    assert all(" " <= character <= "~" for character in key)
    assert ", " not in key


@HYPOTHESIS_SETTINGS
@given(body=st.binary(max_size=2 * MAX_BODY_BYTES))
@example(body=b"x" * MAX_BODY_BYTES)
@example(body=b"x" * (MAX_BODY_BYTES + 1))
def test_body_limit_counts_decoded_bytes(body: bytes) -> None:
    """E5: the limit is 16 KiB; a base64 body may have a longer text."""
    sent = event("POST", GRANTS, body=base64.b64encode(body).decode(), isBase64Encoded=True)
    try:
        parsed = Request.from_api_gateway(sent).json_object()
    except TooLargeError:
        assert len(body) > MAX_BODY_BYTES
    except RejectedError:
        assert len(body) <= MAX_BODY_BYTES
    else:
        assert parsed == json.loads(body)


@pytest.mark.parametrize("depth", [10, 1000, 8000])
def test_nested_json_is_rejected_at_any_depth(depth: int) -> None:
    """E5: every field of a change must be text, and deep nesting does not cause an internal error."""
    body = '{"user_id":' + "[" * depth + "]" * depth + "}"
    status, error, entitlements = _respond(grant, event("POST", GRANTS, headers={"Idempotency-Key": "k"}, body=body))
    assert (status, error["code"], entitlements.changes) == (400, "BAD_REQUEST", [])


def test_sql_is_never_built_from_strings() -> None:
    """Ruff's rule S608 is enabled, and no file of the functions or layers is exempt from it."""
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert ruff["select"] == ["ALL"]
    assert "S608" not in json.dumps([ruff.get("ignore", []), ruff.get("per-file-ignores", {})])
    code = [path for folder in (LAYER / "grantwire", LIBRARY, FUNCTIONS) for path in folder.rglob("*.py")]
    assert code
    assert [path.name for path in code if "S608" in path.read_text()] == []
