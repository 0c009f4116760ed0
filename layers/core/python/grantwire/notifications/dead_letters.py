"""The SQL of notification_dlq: letters of notifications that were given up, and the two ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.notifications.columns import carrying

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection


# An open letter stays as it is (D2); one that was closed is opened again, because its notification was redriven and
# has failed once more.
_WRITE = carrying("""
INSERT INTO notification_dlq AS letter ({carried}, attempt_count, last_error, failed_at)
SELECT {carried}, attempt_count, last_error, coalesce(%(now)s::timestamptz, now())
  FROM notifications
 WHERE notification_id = ANY(%(ids)s) AND status = 'FAILED'
    ON CONFLICT (notification_id) DO UPDATE
   SET attempt_count = EXCLUDED.attempt_count, last_error = EXCLUDED.last_error, failed_at = EXCLUDED.failed_at,
       status = 'OPEN', closed_at = NULL
 WHERE letter.status <> 'OPEN'
""")


def write_dead_letters(tx: Connection, ids: Sequence[UUID], now: datetime | None = None) -> None:
    """Write the letters of notifications that have just become FAILED, in the transaction that made them so."""
    tx.execute(_WRITE, {"ids": list(ids), "now": now})


# Locked in one order, so that two operators do not wait for each other in a circle. A notification that was swept is
# made anew from its letter; one whose event has another notification by now must not be told twice and stays closed.
_REDRIVE = carrying("""
WITH letters AS MATERIALIZED (
  SELECT * FROM notification_dlq l
   WHERE l.notification_id = ANY(%(ids)s) AND l.closed_at IS NULL
     AND NOT EXISTS (SELECT FROM notifications n
                      WHERE n.event_id = l.event_id AND n.notification_id <> l.notification_id)
   ORDER BY l.notification_id FOR UPDATE OF l),
again AS (
  INSERT INTO notifications AS n ({carried}, next_retry_at, created_at)
  SELECT {carried}, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now())
    FROM letters ORDER BY notification_id
      ON CONFLICT (notification_id) DO UPDATE
     SET status = 'PENDING', attempt_count = 0, next_retry_at = EXCLUDED.next_retry_at, last_error = NULL
   WHERE n.status = 'FAILED'
  RETURNING n.notification_id)
UPDATE notification_dlq l
   SET status = 'REDRIVEN', closed_at = coalesce(%(now)s::timestamptz, now())
  FROM again
 WHERE l.notification_id = again.notification_id
RETURNING l.notification_id
""")


def redrive(tx: Connection, notification_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Have the notifications of open letters sent again, with fresh attempts and the same ids; the ids that changed."""
    rows = tx.execute(_REDRIVE, {"ids": list(notification_ids), "now": now}).fetchall()
    return sorted(row[0] for row in rows)


_DISCARD = """
WITH letters AS MATERIALIZED (
  SELECT notification_id FROM notification_dlq
   WHERE notification_id = ANY(%(ids)s) AND closed_at IS NULL
   ORDER BY notification_id FOR UPDATE)
UPDATE notification_dlq l
   SET status = 'DISCARDED', closed_at = coalesce(%(now)s::timestamptz, now())
  FROM letters
 WHERE l.notification_id = letters.notification_id
RETURNING l.notification_id
"""


def discard_dead_letters(tx: Connection, notification_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Close open letters for good: their notifications stay FAILED; the ids that changed."""
    rows = tx.execute(_DISCARD, {"ids": list(notification_ids), "now": now}).fetchall()
    return sorted(row[0] for row in rows)
