"""What must never be: found by the sweep, told loudly, and mended where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.observability import MetricUnit, logger, metrics
from grantwire.outbox import store as outbox

if TYPE_CHECKING:
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings

_MOST = 1000
_SHOWN = 10

# A notification is sent or given up within hours. The limit keeps the look short when something is very wrong.
_FORGOTTEN = """
SELECT notification_id FROM notifications
 WHERE created_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status IN ('PENDING', 'PROCESSING')
 ORDER BY created_at
 LIMIT %(limit)s
"""


def report_forgotten(tx: Connection, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Tell about notifications that are unfinished after all this time; they stay (R2)."""
    rows = tx.execute(_FORGOTTEN, {"now": now, "keep": settings.inbox, "limit": _MOST}).fetchall()
    if rows:
        metrics.add_metric("NotificationsForgotten", MetricUnit.Count, len(rows))
        shown = [str(row[0]) for row in rows[:_SHOWN]]
        logger.error("unfinished notifications past retention", count=len(rows), notification_ids=shown)
    return len(rows)


def promote_stuck(tx: Connection) -> int:
    """Let events flow that nothing holds back and that nobody made ready: a broken invariant of the outbox (O8)."""
    promoted = outbox.promote_stuck(tx)
    if promoted:
        metrics.add_metric("OutboxStuck", MetricUnit.Count, promoted)
        logger.error("stuck outbox events promoted", count=promoted)
    return promoted
