"""Relay and bridge that handle one event at a time, with plain SQL and with nats-py as its documentation shows it."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, LiteralString

import nats
import psycopg

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7
from infra.local.servers.nats_users import INBOX_PREFIXES, WORKERS
from tests.bench.naive import CLAIM_SIZE, FETCH_SIZE
from tests.bench.outbox import encode_message
from tests.bench.subprocesses import run_in_subprocess
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nats.aio.client import Client

    from tests.bench.servers import Servers

# The claim does not know heads, so it cannot use Grantwire's own indexes.
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
    """Drain an outbox, publishing and marking one event after the other, and return the events per second."""
    with servers.owner(environ["DATABASE_URL"]) as owner, Stream(environ):
        owner.execute(_NAIVE_INDEX)
        try:
            return float(run_in_subprocess(_relay_naively, dict(environ)))
        finally:
            owner.execute("DROP INDEX naive_claim")


async def _relay_naively(environ: Mapping[str, str]) -> float:
    subject, done = environ["ENTITLEMENT_NATS_SUBJECT"], 0
    async with _connect(environ) as client:
        jetstream = client.jetstream()
        with psycopg.connect(environ["DATABASE_URL"], autocommit=True, prepare_threshold=0) as connection:
            began = time.monotonic()
            while rows := connection.execute(_NAIVE_CLAIM, (CLAIM_SIZE, "naive")).fetchall():
                for row in rows:
                    headers, data = encode_message(*row)
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
INSERT INTO user_entitlements AS known (user_id, stock_keeping_unit, status, version, changed_at)
VALUES (%s, %s, 'ACTIVE', %s, %s)
    ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
   SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at
 WHERE known.version < EXCLUDED.version
"""


def naive_bridge(environ: Mapping[str, str], count: int) -> float:
    """Record and acknowledge messages one after the other, each in its own transaction; return messages per second."""
    return float(run_in_subprocess(_bridge_naively, dict(environ), count))


async def _bridge_naively(environ: Mapping[str, str], count: int) -> float:
    durable, stream = environ["NOTIFICATION_NATS_DURABLE"], environ["NOTIFICATION_NATS_STREAM"]
    async with _connect(environ) as client:
        consumer = await client.jetstream().pull_subscribe_bind(durable, stream)
        with psycopg.connect(environ["DATABASE_URL"], prepare_threshold=0) as connection:
            began, left = time.monotonic(), count
            while left:
                for received in await consumer.fetch(min(FETCH_SIZE, left), timeout=5):
                    _record(connection, received.data, (received.headers or {}).get("trace_id"))
                    await received.ack()
                    left -= 1
            await client.flush()
            return count / (time.monotonic() - began)


def _record(connection: psycopg.Connection[Any], data: bytes, trace_id: str | None) -> None:
    """Write the inbox row, the notification and the read model in one transaction if the event is new.

    psycopg sends BEGIN in its own round trip.
    """
    event = EntitlementEvent.FromString(data)
    entitlement, timestamp = (event.user_id, event.stock_keeping_unit), event.occurred_at.ToJsonString()
    payload = {
        "event_id": event.event_id,
        "event_type": event.event_type,
        "occurred_at": timestamp,
        "user_id": event.user_id,
        "stock_keeping_unit": event.stock_keeping_unit,
        "source": event.source,
        "source_id": event.source_id,
        "version": event.version,
    }
    if connection.execute(_SEEN, (event.event_id,)).rowcount:
        content = (*entitlement, event.version, json.dumps(payload), trace_id)
        connection.execute(_NOTIFY, (uuid7(), event.event_id, event.event_type, *content))
        connection.execute(_PROJECT, (*entitlement, event.version, timestamp))
    connection.commit()


@asynccontextmanager
async def _connect(environ: Mapping[str, str]) -> AsyncIterator[Client]:
    """Connect with nats-py, as its documentation shows it."""
    client = await nats.connect(environ["NATS_URL"], inbox_prefix=INBOX_PREFIXES[WORKERS])
    try:
        yield client
    finally:
        await client.close()
