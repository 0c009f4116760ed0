"""Calls check_entitlement in this process, and writes entitlements with times."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from functions.check_entitlement.handler import handler
from grantwire.wiring.routes.check_entitlement import CheckRuntime
from tests.support.client import Response, event
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    import psycopg

CHECK = "/v1/users/{user_id}/entitlements/{stock_keeping_unit}"
HISTORY = f"{CHECK}/history"
CHECKS = "/v1/entitlements/checks"

_INSERT = """
INSERT INTO entitlements (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at)
VALUES (%(user_id)s, %(sku)s, %(status)s, %(version)s, coalesce(%(updated_at)s::timestamptz, now()),
        %(starts_at)s::timestamptz, %(expires_at)s::timestamptz)
ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = EXCLUDED.status, version = EXCLUDED.version, updated_at = EXCLUDED.updated_at,
       starts_at = EXCLUDED.starts_at, expires_at = EXCLUDED.expires_at
"""
_INSERT_AUDIT = """
INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version,
                               status, purchase_id, occurred_at, changed_at, starts_at, expires_at)
VALUES (gen_random_uuid(), %(caller)s, %(operation)s, %(outcome)s, 'u_123', 'item1', %(detail)s::jsonb, %(version)s,
        %(status)s, %(purchase_id)s, %(occurred_at)s::timestamptz, %(changed_at)s::timestamptz,
        %(starts_at)s::timestamptz, %(expires_at)s::timestamptz)
"""


def write_entitlement(rows: psycopg.Connection[Any], **values: Any) -> None:
    """Write a row of `entitlements` as the owner; `values` replace those of an ACTIVE entitlement without times."""
    defaults = {"user_id": "u_123", "sku": "item1", "status": "ACTIVE", "version": 1}
    times = dict.fromkeys(("updated_at", "starts_at", "expires_at"))
    rows.execute(_INSERT, defaults | times | values)


def write_audit(rows: psycopg.Connection[Any], **values: Any) -> None:
    """Write a row of the audit as the owner; `values` replace those of an applied grant."""
    defaults = {"caller": "tests", "operation": "GRANT", "outcome": "APPLIED", "detail": '{"reason": "purchase"}'}
    columns = ("version", "status", "purchase_id", "changed_at", "starts_at", "expires_at")
    if values.get("outcome", "APPLIED") == "APPLIED":
        status = "REVOKED" if values.get("operation") == "REVOKE" else "ACTIVE"
        values = {"version": 1, "status": status, "changed_at": values["occurred_at"]} | values
    rows.execute(_INSERT_AUDIT, defaults | dict.fromkeys(columns) | values)


class CheckClient:
    """Caller of check_entitlement in one execution environment; every response is checked against the API document."""

    def __init__(self, database_url: str, **environ: str) -> None:
        built = CheckRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url, **environ})
        self.runtime = replace(built, limiter=None)

    def __enter__(self) -> Self:
        """Do nothing: the runtime connects on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.runtime.checks._database.close()  # noqa: SLF001 - a function keeps its connection

    def send(self, method: str, path: str, **parts: Any) -> Response:
        """Send an event to the function."""
        sent = handler.with_runtime(self.runtime)(event(method, path, **parts), None)
        response = Response(sent["statusCode"], sent["headers"], sent["body"])
        assert_matches_contract(method, path, response.status, response.headers, response.body)
        return response

    def check(
        self, user_id: str = "u_123", sku: str = "item1", headers: Mapping[str, str] | None = None, **query: str
    ) -> Response:
        """GET a check of one entitlement."""
        return self._get(CHECK, user_id, sku, headers=headers or {}, queryStringParameters=query or None)

    def history(self, user_id: str = "u_123", sku: str = "item1", **query: str) -> Response:
        """GET a page of the history of an entitlement."""
        return self._get(HISTORY, user_id, sku, queryStringParameters=query or None)

    def check_many(self, *pairs: tuple[str, str]) -> Response:
        """POST a check of several entitlements."""
        checks = [{"user_id": user_id, "stock_keeping_unit": sku} for user_id, sku in pairs]
        return self.send("POST", CHECKS, body=json.dumps({"checks": checks}))

    def _get(self, path: str, user_id: str, sku: str, **parts: Any) -> Response:
        names = {"user_id": quote(user_id, safe=""), "stock_keeping_unit": quote(sku, safe="")}
        return self.send("GET", path, pathParameters=names, **parts)


@pytest.fixture
def client(database_url: str, rows: psycopg.Connection[Any]) -> Iterator[CheckClient]:
    """A caller, with an audit of three months in 2024, no changes and no entitlements."""
    rows.execute("TRUNCATE entitlements, entitlement_audit, idempotency_keys, outbox_events")
    rows.execute("SELECT entitlement_audit_ensure_partitions(2, '2024-01-15')")
    with CheckClient(database_url) as client:
        yield client
