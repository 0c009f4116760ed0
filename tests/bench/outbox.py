"""A filled outbox, and the minimum cost of publishing it: plain SQL for the rows, prepared bytes for the messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.types.string import TextLoader

from grantwire.events.v1 import EntitlementEvent
from grantwire.identifiers import uuid7

if TYPE_CHECKING:
    from tests.bench.raw_nats import RawNats

BATCH_SIZE = 500

# The rows that change_entitlement and outbox_enqueue write, one microsecond apart.
_FILL: LiteralString = """
INSERT INTO outbox_events
       (event_id, event_type, aggregate_key, aggregate_version, payload, trace_id, ready, created_at)
SELECT event_id, 'EntitlementGranted', entitlement_aggregate_key(user_id, 'item1'), version,
       jsonb_build_object(
           'event_id', event_id, 'event_type', 'EntitlementGranted', 'occurred_at', rfc3339(now()),
           'user_id', user_id, 'stock_keeping_unit', 'item1',
           'source', 'purchase', 'source_id', 'p_' || n, 'version', version),
       '1-00000000-000000000000000000000000', version = 1, now() + n * interval '1 microsecond'
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS e (event_id, n)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN %(hot)s THEN 'u_hot' ELSE 'u_' || n END AS user_id,
              CASE WHEN %(hot)s THEN n ELSE 1 END AS version) AS of
"""


# The audit rows of the same changes, without which the bridge would not record the events. Each has a transaction of
# its own, as real changes have. With one transaction for all, PostgreSQL 18 would look for an event with a skip scan of
# the feed's index.
_FILL_AUDIT: LiteralString = """
INSERT INTO entitlement_audit
       (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail, version, status,
        purchase_id, changed_at, transaction_id)
SELECT event_id, 'local', 'GRANT', 'APPLIED', payload->>'user_id', payload->>'stock_keeping_unit', trace_id, '{}',
       aggregate_version, 'ACTIVE', payload->>'source_id', now(), (row_number() OVER ())::text::xid8
  FROM outbox_events
"""


def fill(owner: psycopg.Connection[Any], count: int, *, hot: bool) -> None:
    """Replace outbox and audit by `count` events, all of one aggregate if `hot`, otherwise each of its own."""
    owner.execute("TRUNCATE outbox_events, entitlement_audit")
    owner.execute(_FILL, {"ids": [uuid7() for _ in range(count)], "hot": hot})
    owner.execute(_FILL_AUDIT)
    owner.execute("VACUUM ANALYZE outbox_events, entitlement_audit")


_EVENTS: LiteralString = "SELECT payload, aggregate_key, trace_id FROM outbox_events ORDER BY created_at"


def encode_message(payload: dict[str, Any], aggregate_key: str, trace_id: str) -> tuple[dict[str, str], bytes]:
    """Return the headers and the data of an event as the relay publishes it (N1, O3)."""
    event = EntitlementEvent(**{name: value for name, value in payload.items() if name != "occurred_at"})
    event.occurred_at.FromJsonString(payload["occurred_at"])
    headers = {
        "Nats-Msg-Id": payload["event_id"],
        "event_id": payload["event_id"],
        "event_type": payload["event_type"],
        "aggregate_key": aggregate_key,
        "occurred_at": payload["occurred_at"],
        "trace_id": trace_id,
    }
    return headers, event.SerializeToString()


def encode_frames(owner: psycopg.Connection[Any], nats: RawNats, subject: str) -> list[bytes]:
    """Return the bytes that publish each event of the outbox."""
    return [nats.frame(subject, *encode_message(*row)) for row in owner.execute(_EVENTS)]


# Only the columns that the plain claim needs, and an index from which it reads the oldest events in order.
_TABLE: LiteralString = """
CREATE TABLE limit_outbox (
    event_id uuid PRIMARY KEY,
    event_type text NOT NULL,
    aggregate_key text NOT NULL,
    payload jsonb NOT NULL,
    trace_id text,
    status text NOT NULL DEFAULT 'PENDING',
    attempt_count integer NOT NULL DEFAULT 0,
    next_retry_at timestamptz,
    locked_by text,
    locked_at timestamptz,
    lease_until timestamptz,
    last_error text,
    created_at timestamptz NOT NULL,
    published_at timestamptz)
  WITH (fillfactor = 50)
"""
_INDEX: LiteralString = """
CREATE INDEX limit_outbox_open ON limit_outbox (created_at) WHERE status IN ('PENDING', 'IN_FLIGHT')
"""
_COPY: LiteralString = """
INSERT INTO limit_outbox (event_id, event_type, aggregate_key, payload, trace_id, created_at)
SELECT event_id, event_type, aggregate_key, payload, trace_id, created_at FROM outbox_events ORDER BY created_at
"""
_CLAIM: LiteralString = """
WITH cte AS (
  SELECT event_id FROM limit_outbox
   WHERE (status = 'PENDING' AND (next_retry_at IS NULL OR next_retry_at <= now()))
      OR (status = 'IN_FLIGHT' AND (lease_until IS NULL OR lease_until <= now()))
   ORDER BY created_at
   LIMIT 500
     FOR UPDATE SKIP LOCKED)
UPDATE limit_outbox e
   SET status = 'IN_FLIGHT', locked_by = 'limit', locked_at = now(), lease_until = now() + interval '30 seconds',
       last_error = NULL
  FROM cte
 WHERE e.event_id = cte.event_id
RETURNING e.event_id, e.event_type, e.payload, e.attempt_count
"""
_MARK: LiteralString = """
UPDATE limit_outbox SET status = 'PUBLISHED', published_at = now(), lease_until = NULL
 WHERE event_id = ANY (%s::uuid[]) AND locked_by = 'limit'
"""


class PlainSql:
    """Claims and marks the events of a plain outbox, without order within an aggregate, encoding or publishing."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        # The values are not used, so they need no conversion to Python objects.
        for kind in ("uuid", "jsonb"):
            self._connection.adapters.register_loader(kind, TextLoader)
        self._connection.execute(_TABLE)
        self._connection.execute(_INDEX)
        self._connection.execute("SET enable_seqscan = off")  # with few events the planner would sort all of them
        self._connection.execute("SET enable_sort = off")

    def fill(self) -> None:
        """Replace the events by those of the outbox. Raises RuntimeError if the claim would not use its index."""
        self._connection.execute("TRUNCATE limit_outbox")
        self._connection.execute(_COPY)
        self._connection.execute("VACUUM ANALYZE limit_outbox")
        plan = "\n".join(line for (line,) in self._connection.execute("EXPLAIN " + _CLAIM))
        if "Sort" in plan or "Seq Scan" in plan:
            raise RuntimeError(f"the plain claim does not use its index:\n{plan}")

    def drain(self) -> float:
        """Claim and mark every event, batch by batch, and return the seconds."""
        began = time.perf_counter()
        while claimed := self._connection.execute(_CLAIM).fetchall():
            self._connection.execute(_MARK, ([row[0] for row in claimed],))
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
