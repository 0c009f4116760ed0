"""The monthly partitions of the audit: created ahead, filled from DEFAULT, dropped if a setting allows it (A1)."""

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


def ensure_partitions(tx: Connection, now: datetime | None = None) -> list[str]:
    """Create the partitions of this month and the next three, and return the names of the created ones."""
    return [row[0] for row in tx.execute(_ENSURE, {"ahead": MONTHS_AHEAD, "now": now})]


_COUNT_DEFAULT_ROWS = """
SELECT date_trunc('month', occurred_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', count(*)
  FROM entitlement_audit_default
 GROUP BY 1 ORDER BY 1
"""


def empty_default_partition(tx: Connection) -> int:
    """Log the rows in the DEFAULT partition, create partitions for their months, and return how many rows there were.

    Creating a partition moves its rows. Inserts wait meanwhile if the month has already begun.
    """
    months = tx.execute(_COUNT_DEFAULT_ROWS).fetchall()
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


def drop_oldest_partition(tx: Connection, months: int, now: datetime | None = None) -> str | None:
    """Drop the oldest partition that is past its retention. Return its name, or None if there is none."""
    row = tx.execute(_DROP_OLDEST, {"months": months, "now": now}).fetchone()
    return None if row is None else row[0]


_DELETE_AUDIT_RETENTION = "DELETE FROM audit_retention"

_SET_AUDIT_RETENTION = """
INSERT INTO audit_retention (keep_months) VALUES (%s)
ON CONFLICT (single) DO UPDATE SET keep_months = EXCLUDED.keep_months
"""


def limit_audit_retention(connection: Connection, months: int | None) -> None:
    """Set how many months of the audit must be kept before the sweep may drop them; None means forever.

    Only the owner of the schema can change this: the privileges of the functions do not suffice to shorten the audit.
    """
    if months is None:
        connection.execute(_DELETE_AUDIT_RETENTION)
    else:
        connection.execute(_SET_AUDIT_RETENTION, (months,))
