"""Invariant checks of the sweep: violations are logged as errors, and repaired where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.observability import MetricUnit, logger, metrics
from grantwire.outbox import store as outbox

if TYPE_CHECKING:
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings

# The limit keeps the statement fast even if very many notifications are unfinished.
_MAX_ROWS = 1000
_MAX_LOGGED_IDS = 10

# A notification is normally SENT or FAILED within hours.
_SELECT_UNFINISHED = """
SELECT notification_id FROM notifications
 WHERE created_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status IN ('PENDING', 'PROCESSING')
 ORDER BY created_at
 LIMIT %(limit)s
"""


def report_unfinished_notifications(tx: Connection, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Log unfinished notifications past their retention and return how many there are; they are not deleted (R2)."""
    rows = tx.execute(_SELECT_UNFINISHED, {"now": now, "keep": settings.inbox, "limit": _MAX_ROWS}).fetchall()
    if rows:
        metrics.add_metric("NotificationsForgotten", MetricUnit.Count, len(rows))
        ids = [str(row[0]) for row in rows[:_MAX_LOGGED_IDS]]
        logger.error("unfinished notifications past retention", count=len(rows), notification_ids=ids)
    return len(rows)


def promote_stuck_events(tx: Connection) -> int:
    """Mark outbox events ready that are the head of their aggregate but were not marked, and return how many.

    Such an event violates an invariant of the outbox and would never be published (O8).
    """
    promoted = outbox.promote_stuck(tx)
    if promoted:
        metrics.add_metric("OutboxStuck", MetricUnit.Count, promoted)
        logger.error("stuck outbox events promoted", count=promoted)
    return promoted
