"""E5: whatever a caller sends, the answer is one of the documented ones, and nothing is written unless it is a 200."""

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
from grantwire.clients.scopes import Scope
from grantwire.entitlements import Change, Entitlements, Operation, Page
from grantwire.entrypoints.request import LARGEST_BODY, Request
from grantwire.errors import BadRequestError, RejectedError, TooLargeError
from grantwire.idempotency import RequestIdentity, StoredResponse, parse_key
from grantwire.runtime.api import ApiRuntime
from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS, event
from tests.support.paths import FUNCTIONS, LAYER, LIBRARY, ROOT

# A parser that does not come back is a defect; a busy machine is none.
PATIENT = settings(deadline=timedelta(seconds=5), max_examples=100)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
# What HTTP and API Gateway let through: names are tokens, values are visible text of any charset.
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
# A change of which any field may be missing, doubled in kind or of any other type.
ALMOST_CHANGES = st.fixed_dictionaries({}, optional=dict.fromkeys(CHANGE, JSON) | {"else": JSON})
BODIES = (
    st.none()
    | ANY_TEXT
    | JSON.map(json.dumps)
    | ALMOST_CHANGES.map(json.dumps)
    | ALMOST_CHANGES.map(lambda change: json.dumps(CHANGE | change))
    | st.binary(max_size=300).map(lambda raw: base64.b64encode(raw).decode())
)


class Writes(Entitlements):
    """Stands where PostgreSQL is, and remembers what reached it."""

    def __init__(self) -> None:
        self.changes: list[tuple[Change, RequestIdentity]] = []
        self.pages: list[Page] = []

    def change(self, operation: Operation, change: Change, identity: RequestIdentity, trace_id: str) -> StoredResponse:
        """Every valid change succeeds."""
        assert (operation, bool(trace_id)) == (Operation.GRANT, True)
        self.changes.append((change, identity))
        return StoredResponse(200, "{}")

    def of_user(self, page: Page) -> str:
        """Nobody has any."""
        self.pages.append(page)
        return "{}"


def _answer(handler: Any, sent: dict[str, Any]) -> tuple[int, Any, Writes]:
    writes = Writes()
    answer = handler.with_runtime(ApiRuntime(writes)).answer(Request.from_api_gateway(sent)).to_api_gateway()
    return answer["statusCode"], json.loads(answer["body"]), writes


@PATIENT
@given(headers=HEADERS, body=BODIES, is_base64=st.booleans())
@example(headers={"Idempotency-Key": "k"}, body="[" * LARGEST_BODY, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body='{"a":' * 3000, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body='{"user_id":' + "9" * 5000 + "}", is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body="é" * LARGEST_BODY, is_base64=False)
@example(headers={"Idempotency-Key": "k"}, body="A" * (LARGEST_BODY * 2), is_base64=True)
@example(headers={"Idempotency-Key": "k"}, body=json.dumps(CHANGE), is_base64=False)
def test_any_change_is_refused_with_a_reason_or_valid(
    headers: dict[str, str], body: str | None, is_base64: bool
) -> None:
    """E5: 400 or 413 with code and message and nothing written, or a change in which every rule holds."""
    status, answer, writes = _answer(
        grant, event("POST", GRANTS, headers=headers, body=body, isBase64Encoded=is_base64)
    )
    if status == 200:
        ((change, identity),) = writes.changes
        assert all(1 <= len(value) <= 128 for value in change.fields().values())
        assert 1 <= len(identity.key) <= 255
        assert identity.key.isascii()
        assert identity.caller == "tests"
    else:
        assert writes.changes == []
        assert (status, answer["code"]) in {(400, "BAD_REQUEST"), (413, "TOO_LARGE")}
        assert answer["message"]


@PATIENT
@given(
    user_id=ANY_TEXT,
    names=st.dictionaries(st.sampled_from(["limit", "after", "x", "", "Limit"]), st.lists(ANY_TEXT, max_size=3)),
)
@example(user_id="%00", names={})
@example(user_id="%C3%28", names={})
@example(user_id="%ED%A0%80", names={})
@example(user_id="u", names={"limit": ["٣"]})
@example(user_id="u", names={"limit": ["9" * 5000]})
@example(user_id="u", names={"limit": []})
def test_any_query_is_refused_with_a_reason_or_valid(user_id: str, names: dict[str, list[str]]) -> None:
    """E4, E5: pages are bounded whatever is asked for, and names are what PostgreSQL can hold."""
    sent = event(
        "GET", ENTITLEMENTS, pathParameters={"user_id": user_id}, multiValueQueryStringParameters=names or None
    )
    status, answer, writes = _answer(query, sent)
    if status == 200:
        (page,) = writes.pages
        assert 1 <= page.limit <= 1000
        for name in (page.user_id, page.after or "none"):
            assert 1 <= len(name) <= 128
            assert "\0" not in name.encode().decode()
    else:
        assert (status, answer["code"], writes.pages) == (400, "BAD_REQUEST", [])


@PATIENT
@given(
    caller=st.none() | st.dictionaries(st.sampled_from(["principalId", "scopes", "x"]), st.none() | ANY_TEXT),
    method=st.sampled_from(["POST", "GET", "DELETE", ""]),
)
def test_nobody_gets_in_without_a_name_and_the_scope(caller: dict[str, Any] | None, method: str) -> None:
    """I7: whatever the gateway says of the caller; a caller without a name or the scope writes nothing."""
    sent = event(
        method,
        GRANTS,
        headers={"Idempotency-Key": "k"},
        body=json.dumps(CHANGE),
        requestContext={"requestId": "r", "authorizer": caller},
    )
    status, answer, writes = _answer(grant, sent)
    named = bool(caller and caller.get("principalId"))
    scoped = bool(caller and Scope.WRITE_ENTITLEMENTS in str(caller.get("scopes") or "").split())
    if not named:
        assert (status, answer["code"]) == (401, "UNAUTHENTICATED")
    elif not scoped:
        assert (status, answer["code"]) == (403, "FORBIDDEN")
    else:
        assert status == (200 if method == "POST" else 405)
    assert bool(writes.changes) == (status == 200)


@PATIENT
@given(st.lists(ANY_TEXT, max_size=3))
def test_a_key_is_one_printable_line_or_refused(values: list[str]) -> None:
    """E5, I7: nothing that two proxies could read differently."""
    try:
        key = parse_key(values)
    except BadRequestError:
        return
    assert values == [values[0]]
    assert key == values[0].strip()
    assert 1 <= len(key) <= 255
    assert all(" " <= character <= "~" for character in key)
    assert ", " not in key


@PATIENT
@given(body=st.binary(max_size=2 * LARGEST_BODY))
@example(body=b"x" * LARGEST_BODY)
@example(body=b"x" * (LARGEST_BODY + 1))
def test_a_body_is_read_or_refused_by_its_size_alone(body: bytes) -> None:
    """E5: 16 KiB of bytes, also in base64, where the text is a third longer."""
    sent = event("POST", GRANTS, body=base64.b64encode(body).decode(), isBase64Encoded=True)
    try:
        parsed = Request.from_api_gateway(sent).json_object()
    except TooLargeError:
        assert len(body) > LARGEST_BODY
    except RejectedError:
        assert len(body) <= LARGEST_BODY
    else:
        assert parsed == json.loads(body)


@pytest.mark.parametrize("depth", [10, 1000, 8000])
def test_nested_json_is_refused_at_any_depth(depth: int) -> None:
    """E5: no field of a change is anything but text, and no depth of nesting is a fault of ours."""
    body = '{"user_id":' + "[" * depth + "]" * depth + "}"
    status, answer, writes = _answer(grant, event("POST", GRANTS, headers={"Idempotency-Key": "k"}, body=body))
    assert (status, answer["code"], writes.changes) == (400, "BAD_REQUEST", [])


def test_no_statement_of_the_product_is_put_together_from_text() -> None:
    """SQL goes with parameters: ruff's S608 is on, and nothing that runs in a function is excused from it."""
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert ruff["select"] == ["ALL"]
    assert "S608" not in json.dumps([ruff.get("ignore", []), ruff.get("per-file-ignores", {})])
    code = [path for folder in (LAYER / "grantwire", LIBRARY, FUNCTIONS) for path in folder.rglob("*.py")]
    assert code
    assert [path.name for path in code if "S608" in path.read_text()] == []
