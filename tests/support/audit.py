"""Audit rows for the events of tests, as if change_entitlement had made them: without one, an event is not genuine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError
from grantwire.events.decoding import decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

_INSERT = """
INSERT INTO entitlement_audit
       (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, version, status, purchase_id,
        starts_at, expires_at, changed_at)
SELECT e.event_id, 'tests', e.operation, 'APPLIED', e.user_id, e.sku, '{}', e.version,
       entitlement_status_after(e.event_type), 'p_456', e.starts_at, e.expires_at, now()
  FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::timestamptz[],
              %s::timestamptz[])
       AS e (event_id, event_type, user_id, sku, version, operation, starts_at, expires_at)
"""

# The operation in the audit that causes events of each type.
OPERATIONS = {
    "EntitlementGranted": "GRANT",
    "EntitlementRevoked": "REVOKE",
    "EntitlementExtended": "EXTEND",
    "EntitlementStarted": "START",
    "EntitlementExpiring": "EXPIRING",
    "EntitlementExpired": "EXPIRE",
}


def audit_messages(connection: psycopg.Connection[Any], messages: Iterable[bytes]) -> None:
    """Write the audit row of each message that is an event; the connection can be that of the functions' role."""
    payloads = []
    for message in messages:
        try:
            payload = decode_payload(message)
        except RejectedError:
            continue
        if payload["version"] >= 1:
            payloads.append(payload)
    audit_payloads(connection, payloads)


def audit_payloads(connection: psycopg.Connection[Any], payloads: Iterable[Mapping[str, Any]]) -> None:
    """Write the audit row of each event; events with the same id have one row."""
    events = {payload["event_id"]: payload for payload in payloads}
    names = ("event_id", "event_type", "user_id", "stock_keeping_unit", "version")
    columns = [[event[name] for event in events.values()] for name in names]
    columns.append([OPERATIONS[event["event_type"]] for event in events.values()])
    columns += [[event.get(name) for event in events.values()] for name in ("starts_at", "expires_at")]
    connection.execute(_INSERT, columns)
