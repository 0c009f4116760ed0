"""The SQL of notification_dlq: letters of notifications that were given up, and the two ways out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.database import class_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A notification that was given up, with what an operator needs to decide about it."""

    notification_id: UUID
    event_id: UUID
    event_type: str
    user_id: str
    stock_keeping_unit: str
    version: int
    attempt_count: int
    last_error: str | None
    failed_at: datetime


# An open letter stays as it is (D2); one that was closed is opened again, because its notification was redriven and
# has failed once more.
_WRITE = """
INSERT INTO notification_dlq AS letter (
       notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
       attempt_count, last_error, failed_at)
SELECT notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
       attempt_count, last_error, coalesce(%(now)s::timestamptz, now())
  FROM notifications
 WHERE notification_id = ANY(%(ids)s) AND status = 'FAILED'
    ON CONFLICT (notification_id) DO UPDATE
   SET attempt_count = EXCLUDED.attempt_count, last_error = EXCLUDED.last_error, failed_at = EXCLUDED.failed_at,
       status = 'OPEN', closed_at = NULL
 WHERE letter.status <> 'OPEN'
"""


def write_dead_letters(tx: Connection, ids: Sequence[UUID], now: datetime | None = None) -> None:
    """Write the letters of notifications that have just become FAILED, in the transaction that made them so."""
    tx.execute(_WRITE, {"ids": list(ids), "now": now})


_LIST = """
SELECT notification_id, event_id, event_type, user_id, stock_keeping_unit, version, attempt_count, last_error, failed_at
  FROM notification_dlq
 WHERE closed_at IS NULL
   AND (%(ids)s::uuid[] IS NULL OR notification_id = ANY(%(ids)s::uuid[]))
   AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s::text)
   AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s::text)
   AND (%(failed_after)s::timestamptz IS NULL OR failed_at >= %(failed_after)s::timestamptz)
   AND (%(failed_before)s::timestamptz IS NULL OR failed_at < %(failed_before)s::timestamptz)
 ORDER BY failed_at, notification_id
 LIMIT %(limit)s
"""


def open_dead_letters(  # noqa: PLR0913 - each is one way to narrow the list
    tx: Connection,
    *,
    limit: int = 1000,
    ids: Sequence[UUID] | None = None,
    user_id: str | None = None,
    event_type: str | None = None,
    failed_after: datetime | None = None,
    failed_before: datetime | None = None,
) -> list[DeadLetter]:
    """Open letters, the oldest first; every filter that is given must match."""
    parameters: dict[str, Any] = {
        "limit": limit,
        "ids": None if ids is None else list(ids),
        "user_id": user_id,
        "event_type": event_type,
        "failed_after": failed_after,
        "failed_before": failed_before,
    }
    with tx.cursor(row_factory=class_row(DeadLetter)) as cursor:
        return cursor.execute(_LIST, parameters).fetchall()


# Locked in one order, so that two operators do not wait for each other in a circle. A notification that was swept is
# made anew from its letter; one whose event has another notification by now must not be told twice and stays closed.
_REDRIVE = """
WITH letters AS MATERIALIZED (
  SELECT * FROM notification_dlq l
   WHERE l.notification_id = ANY(%(ids)s) AND l.closed_at IS NULL
     AND NOT EXISTS (SELECT FROM notifications n
                      WHERE n.event_id = l.event_id AND n.notification_id <> l.notification_id)
   ORDER BY l.notification_id FOR UPDATE OF l),
again AS (
  INSERT INTO notifications AS n (
         notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
         next_retry_at, created_at)
  SELECT notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, trace_id,
         coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now())
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
"""


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
