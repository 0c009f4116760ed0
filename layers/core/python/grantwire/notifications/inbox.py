"""The SQL of the inbox: records new events with their notifications, and projects them (N4, P1).

One statement writes inbox rows, notifications and read model, so that it is atomic without a transaction around it.
Add further effects of an event to that statement. The SQL function infra/sql/functions/user_entitlements_project.sql
defines how an event changes the read model, because a rebuild from the stream uses it, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from grantwire.database import wrap_exceptions
from grantwire.notifications.columns import expand_shared_columns
from grantwire_idempotency import new_messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.events.decoding import Event

# The library's rule for an inbox: it sorts by event_id, so that two bridges with the same events cannot deadlock.
# After the retention of the inbox the notification of an event may still exist; ON CONFLICT keeps it from a second one.
# One NOTIFY for each batch wakes the delivery workers. Only new events are projected.
_RECORD = expand_shared_columns(
    """
WITH batch AS MATERIALIZED (
  SELECT e.*, r.notification_id, r.trace_id, r.payload
    FROM jsonb_to_recordset(%(events)s::jsonb) AS r (notification_id uuid, trace_id text, payload jsonb)
   CROSS JOIN LATERAL jsonb_to_record(r.payload) AS e (
         event_id uuid, event_type text, user_id text, stock_keeping_unit text, version bigint,
         occurred_at timestamptz, starts_at timestamptz, expires_at timestamptz)),
new_events AS ({new_events}),
created AS (
  INSERT INTO notifications ({shared_columns}, next_retry_at, created_at)
  SELECT {shared_columns}, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now())
    FROM batch JOIN new_events USING (event_id)
   ORDER BY event_id
      ON CONFLICT (event_id) DO NOTHING
  RETURNING event_id),
woken AS (
  SELECT pg_notify('notifications', '') FROM (SELECT FROM created LIMIT 1) AS first),
projected AS (
  SELECT user_entitlements_project(array_agg(user_id), array_agg(stock_keeping_unit), array_agg(event_type),
                             array_agg(version), array_agg(occurred_at), array_agg(starts_at),
                             array_agg(expires_at)) AS changed
    FROM batch JOIN new_events USING (event_id))
SELECT ARRAY(SELECT event_id::text FROM new_events), (SELECT count(*) FROM woken), (SELECT changed FROM projected)
""",
    new_events=new_messages(
        table="processed_events", key="event_id", source="batch", now="coalesce(%(now)s::timestamptz, now())"
    ),
)


def record_events(tx: Connection, events: Sequence[Event], now: datetime | None = None) -> list[str]:
    """Record events with their notifications, project them, and return the ids of those that were new.

    Raises RejectedError if the database refuses the data of one event; the transaction is then aborted. An empty list
    changes nothing, but runs the statement, which proves that the database is able to record.
    """
    rows = [
        {"notification_id": event.notification_id, "trace_id": event.trace_id, "payload": event.payload}
        for event in events
    ]
    with wrap_exceptions():
        row = tx.execute(_RECORD, {"events": json.dumps(rows), "now": now}).fetchone()
    return [] if row is None else list(row[0])
