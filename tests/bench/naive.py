"""The same promises kept statement by statement, as the first description of them reads."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from contextlib import asynccontextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, LiteralString

import nats
import psycopg

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7
from tests.bench.alone import alone
from tests.bench.outbox import message
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from nats.aio.client import Client

    from tests.bench.servers import Servers

    Call = Callable[[], None]

NAIVE = "statement by statement"
_ROUTE = "POST /v1/entitlements/grants"
# Events that a relay claims, and messages that a bridge fetches, at a time.
CLAIM, FETCH = 50, 200

_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_STORED = """
SELECT request_hash, status_code, response_body FROM idempotency_keys
 WHERE caller = 'local' AND route = %s AND idempotency_key = %s AND expires_at > now()
"""
_RIGHT = "SELECT status, version FROM entitlements WHERE user_id = %s AND stock_keeping_unit = %s FOR UPDATE"
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
       (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
VALUES (%s, 'local', 'GRANT', 'APPLIED', %s, %s, '1-0-0', %s::jsonb)
"""
_KEEP = """
INSERT INTO idempotency_keys AS k VALUES ('local', %s, %s, %s, 200, %s, now(), now() + interval '24 hours')
    ON CONFLICT (caller, route, idempotency_key) DO UPDATE
   SET request_hash = EXCLUDED.request_hash, status_code = EXCLUDED.status_code,
       response_body = EXCLUDED.response_body, created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at
 WHERE k.expires_at <= now()
"""


def naive_grant(number: int) -> Call:
    """A grant with all our guarantees, as the first description of it reads: nine round trips, no HTTP around it."""
    connection = psycopg.connect(os.environ["DATABASE_URL"], prepare_threshold=0)
    cursor = connection.cursor()
    names = (f"n_{os.getpid()}_{number}_{turn}" for turn in itertools.count())

    def call() -> None:
        assert _granted(cursor, next(names), "item1") == 1
        connection.commit()

    return call


def _granted(cursor: psycopg.Cursor[Any], name: str, sku: str) -> int:
    """The version that the right has now. User, purchase and key have one name; the BEGIN travels by itself."""
    digest = hashlib.sha256(name.encode()).digest()
    cursor.execute(_LOCK, (int.from_bytes(digest[:8], signed=True),))
    assert cursor.execute(_STORED, (_ROUTE, name)).fetchone() is None
    assert cursor.execute(_RIGHT, (name, sku)).fetchone() is None
    row = cursor.execute(_GRANT, (name, sku)).fetchone()
    assert row is not None
    version, at = row
    operation_id, moment = uuid7(), at.astimezone(UTC).isoformat()
    right = {"user_id": name, "stock_keeping_unit": sku, "version": version}
    event = right | {
        "event_id": str(operation_id),
        "event_type": "EntitlementGranted",
        "occurred_at": moment,
        "source": "purchase",
        "source_id": name,
    }
    detail = {"reason": "purchase", "purchase_id": name, "version": version}
    cursor.execute(_EVENT, (operation_id, f"{name}/{sku}", version, json.dumps(event)))
    cursor.execute(_AUDIT, (operation_id, name, sku, json.dumps(detail)))
    answer = json.dumps(right | {"status": "ACTIVE", "updated_at": moment})
    cursor.execute(_KEEP, (_ROUTE, name, f"v1:{digest.hex()}", answer))
    assert cursor.rowcount == 1
    return int(version)


# The claim has no use for our own indexes, which know heads and successors.
_NAIVE_INDEX: LiteralString = """
CREATE INDEX naive_claim ON outbox_events (created_at) WHERE status IN ('PENDING', 'IN_FLIGHT')
"""
_NAIVE_CLAIM = """
WITH cte AS (
  SELECT event_id FROM outbox_events
   WHERE (status = 'PENDING' AND (next_retry_at IS NULL OR next_retry_at <= now()))
      OR (status = 'IN_FLIGHT' AND (lease_until IS NULL OR lease_until <= now()))
   ORDER BY created_at
   LIMIT %s
     FOR UPDATE SKIP LOCKED)
UPDATE outbox_events e
   SET status = 'IN_FLIGHT', locked_by = %s, locked_at = now(), lease_until = now() + interval '30 seconds',
       last_error = NULL
  FROM cte
 WHERE e.event_id = cte.event_id
RETURNING e.payload, e.aggregate_key, e.trace_id
"""
_NAIVE_PUBLISHED = """
UPDATE outbox_events SET status = 'PUBLISHED', published_at = now(), lease_until = NULL, ready = false
 WHERE event_id = %s AND locked_by = %s
"""


def naive_relay(servers: Servers, environ: Mapping[str, str]) -> float:
    """Drain an outbox by claims of 50, each event published and marked before the next; events a second."""
    with servers.owner(environ["DATABASE_URL"]) as owner, Stream(environ):
        owner.execute(_NAIVE_INDEX)
        try:
            return float(alone(_relay_naively, dict(environ)))
        finally:
            owner.execute("DROP INDEX naive_claim")


async def _relay_naively(environ: Mapping[str, str]) -> float:
    subject, done = environ["ENTITLEMENT_NATS_SUBJECT"], 0
    async with _connected(environ) as client:
        jetstream = client.jetstream()
        with psycopg.connect(environ["DATABASE_URL"], autocommit=True, prepare_threshold=0) as connection:
            began = time.monotonic()
            while rows := connection.execute(_NAIVE_CLAIM, (CLAIM, "naive")).fetchall():
                for row in rows:
                    headers, data = message(*row)
                    await jetstream.publish(subject, data, headers=headers)
                    done += connection.execute(_NAIVE_PUBLISHED, (headers["event_id"], "naive")).rowcount
            return done / (time.monotonic() - began)


_SEEN = "INSERT INTO processed_events (event_id, processed_at) VALUES (%s, now()) ON CONFLICT (event_id) DO NOTHING"
_NOTIFY = """
INSERT INTO notifications (
       notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
       next_retry_at, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s, now(), now())
    ON CONFLICT (event_id) DO NOTHING
"""
_PROJECT = """
INSERT INTO user_rights AS known (user_id, stock_keeping_unit, status, version, changed_at)
VALUES (%s, %s, 'ACTIVE', %s, %s)
    ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at
 WHERE known.version < EXCLUDED.version
"""


def naive_bridge(environ: Mapping[str, str], count: int) -> float:
    """Record so many messages, each in a transaction of its own and acknowledged before the next; messages a second."""
    return float(alone(_bridge_naively, dict(environ), count))


async def _bridge_naively(environ: Mapping[str, str], count: int) -> float:
    durable, stream = environ["NOTIFICATION_NATS_DURABLE"], environ["NOTIFICATION_NATS_STREAM"]
    async with _connected(environ) as client:
        consumer = await client.jetstream().pull_subscribe_bind(durable, stream)
        with psycopg.connect(environ["DATABASE_URL"], prepare_threshold=0) as connection:
            began, left = time.monotonic(), count
            while left:
                for received in await consumer.fetch(min(FETCH, left), timeout=5):
                    _record(connection, received.data, (received.headers or {}).get("trace_id"))
                    await received.ack()
                    left -= 1
            await client.flush()
            return count / (time.monotonic() - began)


def _record(connection: psycopg.Connection[Any], data: bytes, trace_id: str | None) -> None:
    """Inbox row, notification and read model in one transaction, if the event is new; the BEGIN travels by itself."""
    event = EntitlementEvent.FromString(data)
    right, moment = (event.user_id, event.stock_keeping_unit), event.occurred_at.ToJsonString()
    payload = {
        "event_id": event.event_id,
        "event_type": event.event_type,
        "occurred_at": moment,
        "user_id": event.user_id,
        "stock_keeping_unit": event.stock_keeping_unit,
        "source": event.source,
        "source_id": event.source_id,
        "version": event.version,
    }
    if connection.execute(_SEEN, (event.event_id,)).rowcount:
        values = (uuid7(), event.event_id, event.event_type, *right, event.version, json.dumps(payload), trace_id)
        connection.execute(_NOTIFY, values)
        connection.execute(_PROJECT, (*right, event.version, moment))
    connection.commit()


@asynccontextmanager
async def _connected(environ: Mapping[str, str]) -> AsyncIterator[Client]:
    """A client of nats-py's, as its documentation shows it."""
    client = await nats.connect(environ["NATS_URL"])
    try:
        yield client
    finally:
        await client.close()
