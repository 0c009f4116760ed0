"""How often workers start, and which of them end when they are idle (X1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from grantwire.settings import duration, one_of, setting

# Workers whose delay a caller or reader notices. Idle or not, they run all the time, except in the mode `economical`.
FLOW = frozenset({"relay_outbox", "bridge_events", "deliver_notifications"})
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The mode of the workers, and how often those start that end when they are idle; 0 if none ends."""

    mode: str = setting("WORKER_MODE", one_of("always-on", "economical"), default="always-on")
    interval: timedelta = setting("WORKER_INTERVAL", duration(low="0s", high="10m"), default="0s")

    def delay_seconds(self, worker: str) -> float:
        """Return for how long work can wait for the next start of a worker that is healthy."""
        ends_when_idle = worker not in FLOW or self.mode == "economical"
        return self.interval.total_seconds() if ends_when_idle else 0.0

    def interval_seconds(self, worker: str) -> float:
        """Return the seconds between two starts of a worker, which is not the hourly one."""
        return max(_MINUTE.total_seconds(), self.delay_seconds(worker))
