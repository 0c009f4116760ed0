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
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from tests.support.contract import assert_matches_contract
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack

    Case = schemathesis.Case[Any]

SCHEMA = schemathesis.openapi.from_path(ROOT / "openapi.yaml")
SCHEMA.config.generation.with_security_parameters = False  # the caller's token is the test's affair
BOUNDED = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
PATIENCE = 30

WRITTEN = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM api_clients), (SELECT count(*) FROM operator_actions)
"""


@pytest.fixture(scope="module")
def rows(stack: EmbeddedStack) -> Iterator[psycopg.Connection[Any]]:
    """The owner's view of what was written; the workers only follow what a change wrote."""
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        yield connection


def test_every_operation_of_the_document_is_tried() -> None:
    """One that could not be read would be left out in silence."""
    assert len(OPERATIONS) == len(list(SCHEMA.get_all_operations())) == 5


each_operation = pytest.mark.parametrize("operation", list(OPERATIONS))
as_described_or_not = pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)


@each_operation
@as_described_or_not
def test_a_caller_s_requests_are_answered_as_the_document_says(
    operation: str, mode: schemathesis.GenerationMode, stack: EmbeddedStack, rows: psycopg.Connection[Any]
) -> None:
    """E5: 200 or a documented refusal; only a 200 and a refusal by state, which is kept, leave rows."""

    @settings(BOUNDED)
    @given(OPERATIONS[operation].as_strategy(mode))
    def answered(case: Case) -> None:
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

    answered()


@each_operation
def test_nobody_else_s_requests_write_anything(
    operation: str, stack: EmbeddedStack, rows: psycopg.Connection[Any]
) -> None:
    """I7: without a token every request is refused before a function sees it, whatever else is in it."""

    @settings(BOUNDED, max_examples=5)
    @given(OPERATIONS[operation].as_strategy(schemathesis.GenerationMode.NEGATIVE))
    def refused(case: Case) -> None:
        before = rows.execute(WRITTEN).fetchall()
        answer = case.call(stack.api_url, timeout=PATIENCE)
        assert 400 <= answer.status_code < 500, answer.text
        assert _code(answer.status_code, answer.text) in {None, "UNAUTHENTICATED"}
        assert rows.execute(WRITTEN).fetchall() == before

    refused()


def _code(status: int, text: str) -> str | None:
    """OK, the code of an error of ours, or None for an answer that is not the functions'."""
    if status == 200:
        return "OK"
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed.get("code") if isinstance(parsed, dict) else None
