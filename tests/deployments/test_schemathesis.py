"""E5, I7: valid and invalid requests, generated from the API documents, against the deployed API.

No response is a 5xx, every response is documented, and a refused request writes nothing. The number of requests for
each operation is fixed, and the requests are the same in each run.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from grantwire.clients.scopes import CLIENT_ROUTES, PUBLIC_ROUTES, ROUTES
from tests.e2e.http import Http
from tests.support.contract import assert_matches_contract, document, operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack

    Case = schemathesis.Case[Any]

SCHEMA = schemathesis.openapi.from_dict(document())
SCHEMA.config.generation.with_security_parameters = False  # the test sets the caller's token
BOUNDED = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
OPERATIONS = {result.ok().label: result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)}
TIMEOUT_SECONDS = 30

ROW_COUNTS = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM api_clients), (SELECT count(*) FROM operator_commands),
       (SELECT count(*) FROM operator_actions WHERE kind = 'client')
"""


@pytest.fixture(scope="module")
def rows(stack: EmbeddedStack) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the owner, to count rows; without a change, the workers write no rows."""
    with psycopg.connect(stack.database_url, autocommit=True) as connection:
        yield connection


def test_every_operation_of_the_document_is_tested() -> None:
    """An operation that cannot be parsed would be skipped silently."""
    assert len(OPERATIONS) == len(list(SCHEMA.get_all_operations())) == len(ROUTES) + len(CLIENT_ROUTES | PUBLIC_ROUTES)


each_operation = pytest.mark.parametrize("operation", list(OPERATIONS))
each_generation_mode = pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)


@each_operation
@each_generation_mode
def test_authorized_request_gets_a_documented_response(
    operation: str, mode: schemathesis.GenerationMode, stack: EmbeddedStack, rows: psycopg.Connection[Any]
) -> None:
    """E5: the response is a success or a documented refusal; only successes and stored conflicts write rows."""
    if operation == "GET /v1/changes":  # without a change, it would wait for as long as a generated request says
        Http(stack.api_url, stack.token).grant(str(uuid.uuid4()), user_id=str(uuid.uuid4()))

    @settings(BOUNDED)
    @given(_requests(operation, mode))
    def check_response(case: Case) -> None:
        before = rows.execute(ROW_COUNTS).fetchall()
        response = case.call(stack.api_url, headers={"Authorization": f"Bearer {stack.token}"}, timeout=TIMEOUT_SECONDS)
        assert response.status_code < 500, response.text
        code = "OK" if response.status_code in {200, 202, 304} else _code(response.text)
        headers = {name: values[-1] for name, values in response.headers.items()}
        assert_matches_contract(case.method, case.path, response.status_code, headers, response.text)
        if code not in {"OK", "ENTITLEMENT_STATE_CONFLICT", "IDEMPOTENCY_KEY_CONFLICT"} or case.method == "GET":
            assert rows.execute(ROW_COUNTS).fetchall() == before

    check_response()


@pytest.mark.parametrize("operation", [operation for operation in OPERATIONS if operation not in PUBLIC_ROUTES])
def test_request_without_a_token_writes_nothing(
    operation: str, stack: EmbeddedStack, rows: psycopg.Connection[Any]
) -> None:
    """I7: every request without a token is refused before a function is invoked."""

    @settings(BOUNDED, max_examples=5)
    @given(_requests(operation, schemathesis.GenerationMode.NEGATIVE))
    def check_refused(case: Case) -> None:
        before = rows.execute(ROW_COUNTS).fetchall()
        response = case.call(stack.api_url, timeout=TIMEOUT_SECONDS)
        assert 400 <= response.status_code < 500, response.text
        assert case.method == "HEAD" or _code(response.text) in {"UNAUTHENTICATED", "NOT_FOUND"}
        assert rows.execute(ROW_COUNTS).fetchall() == before

    check_refused()


def _requests(operation: str, mode: schemathesis.GenerationMode) -> Any:
    """Return a strategy for requests. Without a body, and with parameters that may be any text, none is invalid."""
    described = {f"{method} {path}": described for method, path, described in operations()}[operation]
    is_restricted = any(parameter.get("schema") != {"type": "string"} for parameter in described.get("parameters", ()))
    has_invalid = is_restricted or "requestBody" in described
    return OPERATIONS[operation].as_strategy(mode if has_invalid else schemathesis.GenerationMode.POSITIVE)


def _code(text: str) -> str | None:
    """Return the error code; None for the response to a HEAD request, which has no body."""
    return str(json.loads(text)["code"]) if text else None
