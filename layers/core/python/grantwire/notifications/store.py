"""The SQL that delivery uses on `notifications`: claim, renew, release, complete and fail (D1, D2).

Every update after the claim changes only rows that still have its claim token, and returns their number. Those rows are
changed even if others were lost: they were sent, and recording it avoids a second send.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from grantwire.database import class_row, sql
from grantwire.notifications.dead_letters import write_dead_letters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.workers.leases import Completion, Failure

LEASE_EXPIRED = "lease expired while the notification was being sent"


@dataclass(frozen=True, slots=True)
class Notification:
    """A claimed notification; `attempt_count` is the number of failed attempts so far."""

    notification_id: UUID
    event_type: str
    user_id: str
    stock_keeping_unit: str
    version: int
    payload: Mapping[str, Any]
    trace_id: str | None
    attempt_count: int

    def body(self) -> dict[str, Any]:
        """Return the content that is sent to the receiver."""
        return {"notification_id": str(self.notification_id), **self.payload}


# Claiming a row with an expired lease counts as a failed attempt: the worker that held it crashed or hung (O2).
_CLAIM = (
    sql.SQL("""
WITH due AS MATERIALIZED (
  SELECT notification_id, status = 'PROCESSING' AS expired
    FROM notifications
   WHERE next_retry_at <= coalesce(%(now)s::timestamptz, now())
     AND (status = 'PENDING' OR lease_until <= coalesce(%(now)s::timestamptz, now()))
   ORDER BY next_retry_at
   LIMIT %(limit)s
     FOR UPDATE SKIP LOCKED)
UPDATE notifications n
   SET status = 'PROCESSING', locked_by = %(token)s, locked_at = coalesce(%(now)s::timestamptz, now()),
       lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s,
       attempt_count = n.attempt_count + due.expired::integer,
       last_error = CASE WHEN due.expired THEN %(expired)s ELSE n.last_error END,
       responses = CASE WHEN due.expired THEN notification_responses_add(n.responses, n.lease_until, %(expired)s)
                        ELSE n.responses END
  FROM due
 WHERE n.notification_id = due.notification_id
RETURNING {columns}
""")
    .format(columns=sql.SQL(", ").join(sql.Identifier("n", field.name) for field in fields(Notification)))
    .as_bytes()
)


def claim(
    tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None = None
) -> list[Notification]:
    """Claim notifications that are due, longest due first, including those with an expired lease."""
    parameters = {"token": token, "limit": limit, "lease": lease, "now": now, "expired": LEASE_EXPIRED}
    with tx.cursor(row_factory=class_row(Notification)) as cursor:
        return cursor.execute(_CLAIM, parameters).fetchall()


def get_id(notification: Notification) -> UUID:
    """Return the primary key of a claimed notification."""
    return notification.notification_id


# A notification that was not tried since it was created or redriven has no error. The search is bounded, because many
# notifications may wait for a retry.
_HASTEN = """
UPDATE notifications
   SET next_retry_at = coalesce(%(now)s::timestamptz, now())
 WHERE notification_id = ANY(ARRAY(
         SELECT n.notification_id
           FROM (SELECT notification_id FROM notifications
                  WHERE next_retry_at > coalesce(%(now)s::timestamptz, now())
                  ORDER BY next_retry_at LIMIT 10000) AS waiting
           JOIN notifications n USING (notification_id)
          WHERE n.status = 'PENDING' AND n.attempt_count = 0 AND n.last_error IS NULL
            FOR UPDATE OF n SKIP LOCKED))
"""


def hasten_first_attempts(tx: Connection, now: datetime | None = None) -> int:
    """Make notifications due that were never tried but are not due: the clock was set back (W6); return how many."""
    return tx.execute(_HASTEN, {"now": now}).rowcount


_RENEW = """
UPDATE notifications SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s
 WHERE notification_id = ANY(%(ids)s) AND locked_by = %(token)s AND status = 'PROCESSING'
"""


def renew(tx: Connection, token: str, ids: Sequence[UUID], *, lease: timedelta, now: datetime | None = None) -> int:
    """Renew the lease of claimed notifications; return how many were still held."""
    return tx.execute(_RENEW, {"token": token, "ids": list(ids), "lease": lease, "now": now}).rowcount


_RELEASE = """
UPDATE notifications SET status = 'PENDING', locked_by = NULL, locked_at = NULL, lease_until = NULL
 WHERE notification_id = ANY(%(ids)s) AND locked_by = %(token)s AND status = 'PROCESSING'
"""


def release(tx: Connection, token: str, ids: Sequence[UUID]) -> int:
    """Release claimed notifications without counting an attempt; return how many were still held."""
    return tx.execute(_RELEASE, {"token": token, "ids": list(ids)}).rowcount


_COMPLETE = """
UPDATE notifications n
   SET status = 'SENT', sent_at = coalesce(%(now)s::timestamptz, now()), next_retry_at = NULL, last_error = NULL,
       responses = notification_responses_add(n.responses, coalesce(%(now)s::timestamptz, now()), v.response),
       locked_by = NULL, locked_at = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(responses)s::text[]) AS v (notification_id, response)
 WHERE n.notification_id = v.notification_id AND n.locked_by = %(token)s AND n.status = 'PROCESSING'
"""


def complete(tx: Connection, token: str, completions: Sequence[Completion], *, now: datetime | None = None) -> int:
    """Mark claimed notifications SENT; return how many were still held.

    The evidence of a notification is what the receiver responded.
    """
    ids, responses = zip(*completions, strict=True)
    parameters = {"token": token, "ids": list(ids), "responses": list(responses), "now": now}
    return tx.execute(_COMPLETE, parameters).rowcount


_FAIL = """
UPDATE notifications n
   SET status = CASE WHEN v.retry_after IS NULL THEN 'FAILED' ELSE 'PENDING' END,
       attempt_count = v.attempt_count, last_error = v.error,
       responses = notification_responses_add(n.responses, coalesce(%(now)s::timestamptz, now()), v.error),
       next_retry_at = coalesce(%(now)s::timestamptz, now()) + v.retry_after,
       locked_by = NULL, locked_at = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(retries)s::interval[], %(errors)s::text[])
       AS v (notification_id, attempt_count, retry_after, error)
 WHERE n.notification_id = v.notification_id AND n.locked_by = %(token)s AND n.status = 'PROCESSING'
RETURNING n.notification_id, n.status
"""


def fail(tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None = None) -> int:
    """Schedule a retry for failed notifications or mark them FAILED, as decided; return how many were still held.

    The dead letters of FAILED notifications are written in the same transaction (D2).
    """
    parameters = {
        "token": token,
        "ids": [failure.id for failure in failures],
        "attempts": [failure.decision.attempt_count for failure in failures],
        "retries": [failure.decision.retry_after for failure in failures],
        "errors": [failure.reason for failure in failures],
        "now": now,
    }
    with tx.transaction():
        rows = tx.execute(_FAIL, parameters).fetchall()
        write_dead_letters(tx, [row[0] for row in rows if row[1] == "FAILED"], now)
    return len(rows)
