"""Relay and bridge statement by statement, and event by event through nats-py, as its documentation shows it."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, LiteralString

import nats
import psycopg

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7
from tests.bench.alone import alone
from tests.bench.naive import CLAIM, FETCH
from tests.bench.outbox import message
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nats.aio.client import Client

    from tests.bench.servers import Servers

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
INSERT INTO user_entitlements AS known (user_id, stock_keeping_unit, status, version, changed_at)
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
