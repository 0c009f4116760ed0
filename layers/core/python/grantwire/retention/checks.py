"""Invariant checks of the sweep: violations are logged as errors, and repaired where that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grantwire.observability import MetricUnit, logger, metrics
from grantwire.outbox import store as outbox

if TYPE_CHECKING:
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings

# The limit keeps the statement fast even if very many notifications are unfinished.
_MAX_ROWS = 1000
_MAX_LOGGED_IDS = 10
_MAX_KEPT = 10_000

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


# Both counts end at the limit, so that the statement is fast even if very many events are unfinished.
_COUNT_KEPT = """
SELECT (SELECT count(*)
          FROM (SELECT FROM outbox_events
                 WHERE published_at < x.threshold AND published_at > (SELECT mark FROM outbox_confirmation)
                 LIMIT %(limit)s) AS beyond_the_mark)
       + (SELECT count(*)
            FROM (SELECT u.event_id FROM outbox_unconfirmed u LIMIT %(limit)s) AS listed
            JOIN outbox_events o ON o.event_id = listed.event_id
           WHERE o.published_at < x.threshold)
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AS threshold) AS x
"""


def report_kept_events(tx: Connection, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Log how many published events past their retention are kept, because they are not finished, and return it (W2).

    Two counts of up to 10,000 events are added.
    """
    row = tx.execute(_COUNT_KEPT, {"now": now, "keep": settings.outbox, "limit": _MAX_KEPT}).fetchone()
    kept = 0 if row is None else int(row[0])
    if kept:
        metrics.add_metric("EventsKept", MetricUnit.Count, kept)
        logger.warning("unfinished events past retention kept", count=kept)
    return kept


def promote_stuck_events(tx: Connection) -> int:
    """Mark outbox events ready that are the head of their aggregate but were not marked, and return how many.

    Such an event violates an invariant of the outbox and would never be published (O8).
    """
    promoted = outbox.promote_stuck(tx)
    if promoted:
        metrics.add_metric("OutboxStuck", MetricUnit.Count, promoted)
        logger.error("stuck outbox events promoted", count=promoted)
    return promoted


# An entitlement is committed before its event can be projected, so a row that is ahead in one snapshot is wrong. A row
# that is behind may only wait for its event. The scalar subquery keeps the planner on the primary key of entitlements.
SELECT_DIFFERENCES = """
WITH page AS MATERIALIZED (
  SELECT user_id, stock_keeping_unit, version, status, changed_at, starts_at, expires_at FROM user_entitlements
   WHERE (user_id, stock_keeping_unit) > (%(user_id)s, %(sku)s)
   ORDER BY user_id, stock_keeping_unit
   LIMIT %(limit)s),
compared AS MATERIALIZED (
  SELECT r.stock_keeping_unit, r.version,
         coalesce((SELECT CASE WHEN r.version > e.version THEN 'ahead'
                               WHEN r.version < e.version THEN 'behind'
                               WHEN (r.status, r.changed_at, r.starts_at, r.expires_at)
                                    IS DISTINCT FROM (e.status, e.updated_at, e.starts_at, e.expires_at) THEN 'wrong'
                               ELSE 'equal' END
                     FROM entitlements e
                    WHERE e.user_id = r.user_id AND e.stock_keeping_unit = r.stock_keeping_unit), 'ahead') AS difference
    FROM page r)
SELECT (SELECT count(*) FROM page), last.user_id, last.stock_keeping_unit,
       (SELECT count(*) FROM compared WHERE difference = 'ahead'),
       (SELECT count(*) FROM compared WHERE difference = 'behind'),
       (SELECT count(*) FROM compared WHERE difference = 'wrong'),
       ARRAY(SELECT a.stock_keeping_unit || ' version ' || a.version FROM compared a
              WHERE difference = 'ahead' LIMIT %(examples)s)
  FROM (SELECT user_id, stock_keeping_unit FROM page ORDER BY user_id DESC, stock_keeping_unit DESC LIMIT 1) AS last
"""


class ReadModelPage(NamedTuple):
    """A checked page of the read model: how many rows differ, and the last key, or None after the last page.

    `ahead` includes rows of entitlements that do not exist. `wrong` are rows with the right version and other values.
    """

    ahead: int
    behind: int
    wrong: int
    last: tuple[str, str] | None


def compare_read_model(tx: Connection, after: tuple[str, str], limit: int) -> ReadModelPage:
    """Compare the next page of the read model with the system of record, and log the rows that are ahead of it (G1).

    Such a row hides every later change of its entitlement. Its user is not logged, because it is personal data; the
    view `user_entitlements_differences` has it.
    """
    parameters = {"user_id": after[0], "sku": after[1], "limit": limit, "examples": _MAX_LOGGED_IDS}
    row = tx.execute(SELECT_DIFFERENCES, parameters).fetchone()
    if row is None:
        return ReadModelPage(0, 0, 0, None)
    rows, user_id, sku, ahead, behind, wrong, examples = row
    if ahead:
        metrics.add_metric("ReadModelAhead", MetricUnit.Count, ahead)
        logger.error("read model rows ahead of record", count=ahead, examples=examples)
    return ReadModelPage(ahead, behind, wrong, (user_id, sku) if rows == limit else None)
