"""The SQL of `notification_dlq`: write, redrive and discard the dead letters of notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.notifications.columns import expand_shared_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection


# An open dead letter is not changed (D2). A closed one is opened again, because its notification was redriven and
# failed again.
_WRITE = expand_shared_columns("""
INSERT INTO notification_dlq AS known ({shared_columns}, attempt_count, last_error, failed_at)
SELECT {shared_columns}, attempt_count, last_error, coalesce(%(now)s::timestamptz, now())
  FROM notifications
 WHERE notification_id = ANY(%(ids)s) AND status = 'FAILED'
    ON CONFLICT (notification_id) DO UPDATE
   SET attempt_count = EXCLUDED.attempt_count, last_error = EXCLUDED.last_error, failed_at = EXCLUDED.failed_at,
       status = 'OPEN', closed_at = NULL
 WHERE known.status <> 'OPEN'
""")


def write_dead_letters(tx: Connection, ids: Sequence[UUID], now: datetime | None = None) -> None:
    """Write the dead letters of notifications that became FAILED in the same transaction."""
    tx.execute(_WRITE, {"ids": list(ids), "now": now})


# Rows are locked in id order, so that the commands of two operators cannot deadlock. A notification that the sweep has
# deleted is created again from its dead letter. If the event has another notification by now, nothing is redriven,
# because the receiver would get the event twice.
_REDRIVE = expand_shared_columns("""
WITH selected AS MATERIALIZED (
  SELECT * FROM notification_dlq d
   WHERE d.notification_id = ANY(%(ids)s) AND d.closed_at IS NULL
     AND NOT EXISTS (SELECT FROM notifications n
                      WHERE n.event_id = d.event_id AND n.notification_id <> d.notification_id)
   ORDER BY d.notification_id FOR UPDATE OF d),
redriven AS (
  INSERT INTO notifications AS n ({shared_columns}, next_retry_at, created_at)
  SELECT {shared_columns}, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now())
    FROM selected ORDER BY notification_id
      ON CONFLICT (notification_id) DO UPDATE
     SET status = 'PENDING', attempt_count = 0, next_retry_at = EXCLUDED.next_retry_at, last_error = NULL
   WHERE n.status = 'FAILED'
  RETURNING n.notification_id)
UPDATE notification_dlq d
   SET status = 'REDRIVEN', closed_at = coalesce(%(now)s::timestamptz, now())
  FROM redriven
 WHERE d.notification_id = redriven.notification_id
RETURNING d.notification_id
""")


def redrive(tx: Connection, notification_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Make the notifications of open dead letters PENDING again and return the ids that changed.

    A notification keeps its id, and its attempts are counted from zero.
    """
    rows = tx.execute(_REDRIVE, {"ids": list(notification_ids), "now": now}).fetchall()
    return sorted(row[0] for row in rows)


_DISCARD = """
WITH selected AS MATERIALIZED (
  SELECT notification_id FROM notification_dlq
   WHERE notification_id = ANY(%(ids)s) AND closed_at IS NULL
   ORDER BY notification_id FOR UPDATE)
UPDATE notification_dlq d
   SET status = 'DISCARDED', closed_at = coalesce(%(now)s::timestamptz, now())
  FROM selected
 WHERE d.notification_id = selected.notification_id
RETURNING d.notification_id
"""


def discard_dead_letters(tx: Connection, notification_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Close open dead letters without a redrive and return the ids that changed; their notifications stay FAILED."""
    rows = tx.execute(_DISCARD, {"ids": list(notification_ids), "now": now}).fetchall()
    return sorted(row[0] for row in rows)
