"""The SQL of the inbox: which events were seen, and what the new ones lead to (N4, P1).

One statement writes inbox rows and notifications and brings the read model up to the same events, so that it needs no
transaction around it; whoever adds to what an event causes adds it there. The read model's own rule is in SQL too
(infra/sql/functions/user_entitlements_project.sql), because a replay of the stream follows it as well.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from grantwire.database import wrap_exceptions
from grantwire.notifications.columns import carrying

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.notifications.events import Event

# Sorted by event_id: two bridges that have events in common wait for each other in one order, never in a circle.
# The notification of an event that the inbox has forgotten may still be there; it is not made twice.
# One NOTIFY for a whole batch is cheap; it wakes whoever delivers. The read model comes last, with what is new.
_RECORD = carrying("""
WITH batch AS MATERIALIZED (
  SELECT e.*, r.notification_id, r.trace_id, r.payload
    FROM jsonb_to_recordset(%(events)s::jsonb) AS r (notification_id uuid, trace_id text, payload jsonb)
   CROSS JOIN LATERAL jsonb_to_record(r.payload) AS e (
         event_id uuid, event_type text, user_id text, stock_keeping_unit text, version bigint,
         occurred_at timestamptz)),
fresh AS (
  INSERT INTO processed_events (event_id, processed_at)
  SELECT event_id, coalesce(%(now)s::timestamptz, now()) FROM batch ORDER BY event_id
      ON CONFLICT (event_id) DO NOTHING
  RETURNING event_id),
made AS (
  INSERT INTO notifications ({carried}, next_retry_at, created_at)
  SELECT {carried}, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now())
    FROM batch JOIN fresh USING (event_id)
   ORDER BY event_id
      ON CONFLICT (event_id) DO NOTHING
  RETURNING event_id),
told AS (
  SELECT pg_notify('notifications', '') FROM (SELECT FROM made LIMIT 1) any_at_all),
projected AS (
  SELECT user_entitlements_project(array_agg(user_id), array_agg(stock_keeping_unit), array_agg(event_type),
                             array_agg(version), array_agg(occurred_at)) AS changed
    FROM batch JOIN fresh USING (event_id))
SELECT ARRAY(SELECT event_id::text FROM fresh), (SELECT count(*) FROM told), (SELECT changed FROM projected)
""")


def record(tx: Connection, events: Sequence[Event], now: datetime | None = None) -> list[str]:
    """Write the events that were not seen before, with their notifications, and project them; the ids of those.

    Raises RejectedError if the database refuses the data of one of them; then the transaction is of no more use.
    With no events it changes nothing and tells whether it could.
    """
    rows = [
        {"notification_id": event.notification_id, "trace_id": event.trace_id, "payload": event.payload}
        for event in events
    ]
    with wrap_exceptions():
        answer = tx.execute(_RECORD, {"events": json.dumps(rows), "now": now}).fetchone()
    return [] if answer is None else list(answer[0])
