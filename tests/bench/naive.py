"""A grant with the same guarantees, in one SQL statement per step instead of one SQL call."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from datetime import UTC
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.identifiers import uuid7

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], None]

NAIVE = "statement by statement"
_ROUTE = "POST /v1/entitlements/grants"
# Batch sizes of the relay's claims and of the bridge's pulls.
CLAIM_SIZE, FETCH_SIZE = 50, 200

_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_STORED = """
SELECT request_hash, status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = %s AND idempotency_key = %s AND expires_at > now()
"""
_ENTITLEMENT = "SELECT status, version FROM entitlements WHERE user_id = %s AND stock_keeping_unit = %s FOR UPDATE"
_GRANT = """
INSERT INTO entitlements AS e (user_id, stock_keeping_unit, status, version, updated_at)
VALUES (%s, %s, 'ACTIVE', 1, clock_timestamp())
    ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = 'ACTIVE', version = e.version + 1, updated_at = clock_timestamp()
RETURNING version, updated_at
"""
_EVENT = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, trace_id, ready)
VALUES (%s, 'EntitlementGranted', %s, %s, %s::jsonb, '1-0-0', true)
"""
_AUDIT = """
INSERT INTO entitlement_audit
       (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail, version, status,
        purchase_id, changed_at)
VALUES (%s, 'local', 'GRANT', 'APPLIED', %s, %s, '1-0-0', %s::jsonb, %s, 'ACTIVE', %s, now())
"""
_STORE = """
INSERT INTO idempotency_keys AS k VALUES ('local', %s, %s, %s, 200, %s, now(), now() + interval '24 hours')
    ON CONFLICT (caller, route, idempotency_key) DO UPDATE
   SET request_hash = EXCLUDED.request_hash, status_code = EXCLUDED.status_code,
       response_body = EXCLUDED.response_body, created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at
 WHERE k.expires_at <= now()
"""


def make_naive_grant_call(number: int) -> Call:
    """Return a call that grants an entitlement to a new user, in nine round trips and without an HTTP event."""
    connection = psycopg.connect(os.environ["DATABASE_URL"], prepare_threshold=0)
    cursor = connection.cursor()
    names = (f"n_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        assert _grant(cursor, next(names), "item1") == 1
        connection.commit()

    return call


def _grant(cursor: psycopg.Cursor[Any], name: str, sku: str) -> int:
    """Grant an entitlement and return its version.

    User, purchase and key have the same name. psycopg sends BEGIN in its own round trip.
    """
    digest = hashlib.sha256(name.encode()).digest()
    cursor.execute(_LOCK, (int.from_bytes(digest[:8], signed=True),))
    assert cursor.execute(_STORED, (_ROUTE, name)).fetchone() is None
    assert cursor.execute(_ENTITLEMENT, (name, sku)).fetchone() is None
    row = cursor.execute(_GRANT, (name, sku)).fetchone()
    assert row is not None
    version, updated_at = row
    operation_id, timestamp = uuid7(), updated_at.astimezone(UTC).isoformat()
    entitlement = {"user_id": name, "stock_keeping_unit": sku, "version": version}
    event = entitlement | {
        "event_id": str(operation_id),
        "event_type": "EntitlementGranted",
        "occurred_at": timestamp,
        "source": "purchase",
        "source_id": name,
    }
    detail = {"reason": "purchase"}
    cursor.execute(_EVENT, (operation_id, f"{name}/{sku}", version, json.dumps(event)))
    cursor.execute(_AUDIT, (operation_id, name, sku, json.dumps(detail), version, name))
    response = json.dumps(entitlement | {"status": "ACTIVE", "updated_at": timestamp})
    cursor.execute(_STORE, (_ROUTE, name, f"v1:{digest.hex()}", response))
    assert cursor.rowcount == 1
    return int(version)
