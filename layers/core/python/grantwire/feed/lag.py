"""Measures for how long the change feed is held back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.observability import MetricUnit, write_metric

if TYPE_CHECKING:
    from grantwire.database import Database

# The SQL function is infra/sql/functions/change_feed_lag.sql.
_MEASURE = "SELECT change_feed_lag()"


def report_lag(database: Database) -> float:
    """Write the metric `ChangeFeedLag` and return it: the age in seconds of a committed change that the feed lacks.

    It is 0 if no change is held back. A worker calls it once in each run. Raises only RetryableError.
    """
    (seconds,) = database.fetch_row(_MEASURE, {})
    write_metric("ChangeFeedLag", MetricUnit.Seconds, seconds)
    return float(seconds)
