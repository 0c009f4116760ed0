"""E5, I7: requests made from openapi.yaml, as it says and as it does not, against the deployed API.

No answer is a fault of ours, every answer is one of the document's, and a request that was refused wrote nothing.
Bounded: a fixed number of requests for each operation, the same ones each time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.contract import assert_matches_contract
from tests.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack import Stack

SCHEMA = schemathesis.openapi.from_path(ROOT / "openapi.yaml")
SCHEMA.config.generation.with_security_parameters = False  # the caller's token is the test's affair
BOUNDED = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
PATIENCE = 30

WRITTEN = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM api_clients), (SELECT count(*) FROM operator_actions)
"""


@pytest.fixture(scope="module")
def rows(stack: Stack) -> Iterator[psycopg.Connection[Any]]:
    """The owner's view of what was written; the workers only follow what a change wrote."""
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        yield connection


@SCHEMA.parametrize()
@BOUNDED
def test_a_caller_s_requests_are_answered_as_the_document_says(
    case: schemathesis.Case[Any], stack: Stack, rows: psycopg.Connection[Any]
) -> None:
    """E5: 200 or a documented refusal; only a 200 and a refusal by state, which is kept, leave rows."""
    before = rows.execute(WRITTEN).fetchall()
    answer = case.call(stack.api_url, headers={"Authorization": f"Bearer {stack.token}"}, timeout=PATIENCE)
    assert answer.status_code < 500, answer.text
    code = _code(answer.status_code, answer.text)
    if code is None:
        # The emulator's own answer: to a method or a path that it has not got. On AWS these are 404 and 405.
        assert answer.status_code in {400, 403, 404, 405, 413}
        assert case.method != case.operation.method.upper() or "{user_id}" in case.path
    else:
        headers = {name: values[-1] for name, values in answer.headers.items()}
        assert_matches_contract(case.method, case.path, answer.status_code, headers, answer.text)
    if code not in {"OK", "ENTITLEMENT_STATE_CONFLICT", "IDEMPOTENCY_KEY_CONFLICT"} or case.method == "GET":
        assert rows.execute(WRITTEN).fetchall() == before


@SCHEMA.parametrize()
@settings(BOUNDED, max_examples=5)
def test_nobody_else_s_requests_write_anything(
    case: schemathesis.Case[Any], stack: Stack, rows: psycopg.Connection[Any]
) -> None:
    """I7: without a token every request is refused before a function sees it, whatever else is in it."""
    before = rows.execute(WRITTEN).fetchall()
    answer = case.call(stack.api_url, timeout=PATIENCE)
    assert 400 <= answer.status_code < 500, answer.text
    assert _code(answer.status_code, answer.text) in {None, "UNAUTHENTICATED"}
    assert rows.execute(WRITTEN).fetchall() == before


def _code(status: int, text: str) -> str | None:
    """OK, the code of an error of ours, or None for an answer that is not the functions'."""
    if status == 200:
        return "OK"
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed.get("code") if isinstance(parsed, dict) else None
