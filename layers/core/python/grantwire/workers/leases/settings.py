"""How work is claimed, kept and retried; the variables carry the prefix of what is leased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.settings import duration, integer, number, setting
from grantwire_idempotency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """`ENTITLEMENT_OUTBOX_LEASE`, `NOTIFICATION_DELIVERY_MAX_ATTEMPTS` and so on."""

    poll_interval: timedelta = setting("POLL_INTERVAL", duration(low="10ms", high="1m"), default="200ms")
    batch_size: int = setting("BATCH_SIZE", integer(low=1, high=1000), default="200")
    lease: timedelta = setting("LEASE", duration(low="1s", high="1h"), default="30s")
    max_attempts: int = setting("MAX_ATTEMPTS", integer(low=1, high=1000), default="10")
    backoff_base: timedelta = setting("BACKOFF_BASE", duration(low="1ms", high="1h"), default="1s")
    backoff_max: timedelta = setting("BACKOFF_MAX", duration(low="1ms", high="24h"), default="60s")
    backoff_min: timedelta = setting("BACKOFF_MIN", duration(low="0s", high="1h"), default="0s")
    backoff_jitter_min: float = setting("BACKOFF_JITTER_MIN", number(low=0, high=10), default="0.5")
    backoff_jitter_max: float = setting("BACKOFF_JITTER_MAX", number(low=0, high=10), default="1.5")

    def problems(self) -> Iterator[str]:
        """Bounds must be in order."""
        if self.backoff_jitter_min > self.backoff_jitter_max:
            yield "BACKOFF_JITTER_MIN must not exceed BACKOFF_JITTER_MAX"
        if self.backoff_min > self.backoff_max:
            yield "BACKOFF_MIN must not exceed BACKOFF_MAX"
        if self.backoff_base > self.backoff_max:
            yield "BACKOFF_BASE must not exceed BACKOFF_MAX"

    @property
    def backoff(self) -> Backoff:
        """How long to wait after a failure."""
        return Backoff(
            self.backoff_base, self.backoff_max, self.backoff_min, self.backoff_jitter_min, self.backoff_jitter_max
        )
