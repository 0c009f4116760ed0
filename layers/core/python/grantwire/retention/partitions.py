"""The months of the audit: made ahead, moved out of DEFAULT, dropped when a setting says so (A1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.observability import MetricUnit, logger, metrics

if TYPE_CHECKING:
    from datetime import datetime

    from grantwire.database import Connection

MONTHS_AHEAD = 3

_ENSURE = """
SELECT entitlement_audit_ensure_partitions(%(ahead)s, coalesce(%(now)s::timestamptz, now()))
"""


def ensure_months(tx: Connection, now: datetime | None = None) -> list[str]:
    """Make the partitions of this month and of the three that follow; those that were missing."""
    return [row[0] for row in tx.execute(_ENSURE, {"ahead": MONTHS_AHEAD, "now": now})]


_IN_DEFAULT = """
SELECT date_trunc('month', occurred_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', count(*)
  FROM entitlement_audit_default
 GROUP BY 1 ORDER BY 1
"""


def empty_default(tx: Connection) -> int:
    """Tell about rows that no month took, and give each of their months a partition; how many rows there were.

    Inserts wait while the rows of a month that has begun are moved.
    """
    months = tx.execute(_IN_DEFAULT).fetchall()
    rows: int = sum(count for _, count in months)
    if rows:
        metrics.add_metric("AuditRowsInDefault", MetricUnit.Count, rows)
        logger.error("audit rows in default partition", count=rows, months=[f"{month:%Y-%m}" for month, _ in months])
    for month, _ in months:
        tx.execute(_ENSURE, {"ahead": 0, "now": month})
    return rows


_DROP_OLDEST = """
SELECT entitlement_audit_drop_oldest(%(months)s, coalesce(%(now)s::timestamptz, now()))
"""


def drop_oldest_month(tx: Connection, months: int, now: datetime | None = None) -> str | None:
    """Drop the oldest month that is out of its time; its name, None if there is none."""
    row = tx.execute(_DROP_OLDEST, {"months": months, "now": now}).fetchone()
    return None if row is None else row[0]
