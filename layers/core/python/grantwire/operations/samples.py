"""One sample of the status a minute, kept for a day, so that the console needs no CloudWatch (T8)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.errors import BadRequestError, GrantwireError
from grantwire.feed.lag import report_lag
from grantwire.observability import MetricUnit, logger, metrics
from grantwire.operations.problems import late_after
from grantwire.validation import single_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from grantwire.database import Database
    from grantwire.entitlements.settings import TimeSettings
    from grantwire.workers.schedule import ScheduleSettings

INTERVAL_SECONDS = 60
_MAX_HOURS = 24

# The SQL function writes the sample of this minute, unless another worker has; then it returns NULL.
_TAKE = "SELECT status_sample_take(%(late_after)s, %(grace)s, %(now)s)"

_LIST = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
         'at', rfc3339(s.sampled_at), 'outbox_pending', s.outbox_pending, 'outbox_failed', s.outbox_failed,
         'oldest_pending_seconds', s.oldest_pending_seconds, 'consumer_lag', s.consumer_lag,
         'notifications_pending', s.notifications_pending, 'dead_letters', s.dead_letters,
         'published', s.published, 'processed', s.processed, 'sent', s.sent,
         'settled_through', rfc3339(s.settled_through), 'settled_age_seconds', s.settled_age_seconds)
         ORDER BY s.sampled_at), '[]')
  FROM status_samples s
 WHERE s.sampled_at > coalesce(%(now)s::timestamptz, now()) - %(hours)s * interval '1 hour'
"""

# The metric of each column, for the dashboard (T7). Those that the workers write themselves are not repeated.
_METRICS = {
    "outbox_pending": "OutboxPending",
    "outbox_failed": "OutboxFailed",
    "notifications_pending": "NotificationsPending",
    "dead_letters": "DeadLettersOpen",
    "leases_expired": "LeasesExpired",
    "months_missing": "PartitionsMissing",
    "workers_late": "WorkersLate",
}


def parse_hours(query: Mapping[str, Sequence[str]]) -> int:
    """Return the query parameter `hours`, 1 to 24, by default 1; raises BadRequestError."""
    text = single_values(query, "hours").get("hours", "1")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_HOURS)) and 1 <= int(text) <= _MAX_HOURS):
        raise BadRequestError(f"hours must be a whole number between 1 and {_MAX_HOURS}")
    return int(text)


class Samples:
    """The samples in `status_samples`. `clock` returns seconds, to take at most one sample a minute."""

    def __init__(
        self,
        database: Database,
        times: TimeSettings,
        schedule: ScheduleSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._late_after = late_after(schedule)
        self._times = times
        self._clock = clock
        self._minute = -1

    def take_if_due(self, now: datetime | None = None) -> bool:
        """Write the sample of this minute and the metrics, among them ChangeFeedLag; return whether it was written.

        Of several workers, one writes the sample. A failure is logged, because it must not delay a command.
        """
        minute = int(self._clock() // INTERVAL_SECONDS)
        if minute == self._minute:
            return False
        self._minute = minute
        try:
            (sample,) = self._database.fetch_row(
                _TAKE, {"late_after": Jsonb(self._late_after), "grace": self._times.grace_interval, "now": now}
            )
            if sample is None:
                return False
            _write_metrics(sample)
            report_lag(self._database)
        except GrantwireError as error:
            logger.warning("could not take sample", reason=str(error))
            return False
        return True

    def list_hours(self, hours: int, now: datetime | None = None) -> dict[str, Any]:
        """Return the samples of the last hours as the JSON object of the response, oldest first."""
        (samples,) = self._database.fetch_row(_LIST, {"hours": hours, "now": now})
        return {"interval_seconds": INTERVAL_SECONDS, "samples": samples}


def _write_metrics(sample: Mapping[str, Any]) -> None:
    for column, metric in _METRICS.items():
        metrics.add_metric(metric, MetricUnit.Count, sample[column])
    metrics.add_metric("SettledAge", MetricUnit.Seconds, sample["settled_age_seconds"])
