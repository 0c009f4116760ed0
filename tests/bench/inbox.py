"""The minimum cost of recording events: plain inserts of prepared rows."""

from __future__ import annotations

import time
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from grantwire.identifiers import uuid7

BATCH_SIZE = 500

_EMPTY: LiteralString = "TRUNCATE processed_events, notifications, user_entitlements"
_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM processed_events), (SELECT count(*) FROM notifications),
       (SELECT count(*) FROM user_entitlements)
"""

# Arrays in PostgreSQL's text format, so that the inserts can send them without conversion.
_BATCHES: LiteralString = """
SELECT array_agg(notification_id)::text AS notification_id, array_agg(event_id)::text AS event_id,
       array_agg(event_type)::text AS event_type, array_agg(payload ->> 'user_id')::text AS user_id,
       array_agg(payload ->> 'stock_keeping_unit')::text AS stock_keeping_unit,
       array_agg(aggregate_version)::text AS version, array_agg(payload)::text AS payload,
       array_agg(trace_id)::text AS trace_id, array_agg(payload ->> 'occurred_at')::text AS occurred_at
  FROM (SELECT *, row_number() OVER (ORDER BY created_at) AS n FROM outbox_events) o
  JOIN unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i (notification_id, n) USING (n)
 GROUP BY (n - 1) / %(batch)s
"""

_INSERTS: tuple[LiteralString, ...] = (
    """
INSERT INTO processed_events (event_id, processed_at) SELECT event_id, now() FROM unnest(%(event_id)s::uuid[]) event_id
""",
    """
INSERT INTO notifications (
       notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
       next_retry_at, created_at)
SELECT r.*, now(), now()
  FROM unnest(%(notification_id)s::uuid[], %(event_id)s::uuid[], %(event_type)s::text[], %(user_id)s::text[],
              %(stock_keeping_unit)s::text[], %(version)s::bigint[], %(payload)s::jsonb[], %(trace_id)s::text[]) r
""",
    """
INSERT INTO user_entitlements (user_id, stock_keeping_unit, status, version, changed_at)
SELECT user_id, stock_keeping_unit, 'ACTIVE', version, changed_at
  FROM unnest(%(user_id)s::text[], %(stock_keeping_unit)s::text[], %(version)s::bigint[],
              %(occurred_at)s::timestamptz[]) r (user_id, stock_keeping_unit, version, changed_at)
""",
)


class PlainInserts:
    """Writes the rows for all `count` events of an outbox, batch by batch."""

    def __init__(self, address: str, count: int) -> None:
        self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        batches = self._connection.cursor(row_factory=dict_row).execute(
            _BATCHES, {"ids": [uuid7() for _ in range(count)], "batch": BATCH_SIZE}
        )
        self._batches = batches.fetchall()

    def truncate(self) -> None:
        """Delete every inbox row, notification and read model row."""
        self._connection.execute(_EMPTY)

    def write(self) -> float:
        """Write each batch in one transaction, with one statement per table, and return the seconds."""
        began = time.perf_counter()
        for batch in self._batches:
            with self._connection.transaction():
                for statement in _INSERTS:
                    self._connection.execute(statement, batch)
        return time.perf_counter() - began

    def counts(self) -> tuple[Any, ...]:
        """Return the numbers of inbox rows, notifications and read model rows."""
        row = self._connection.execute(_COUNTS).fetchone()
        assert row is not None
        return row

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
