"""What becomes of work that failed: tried again later, or given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from grantwire.workers.leases.settings import LeaseSettings

# 2 ** 62 seconds is longer than any cap; beyond it a float would overflow before the cap applies.
_LARGEST_EXPONENT = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """`min(cap, base * 2^(attempt - 1)) * jitter`, jitter between its bounds, never below the floor (O4)."""

    base: timedelta
    cap: timedelta
    floor: timedelta
    jitter_min: float
    jitter_max: float

    def delay(self, attempt: int, rand: Callable[[], float]) -> timedelta:
        """How long to wait after failed attempt number `attempt`, counted from 1; `rand` is in [0, 1)."""
        exponent = min(attempt - 1, _LARGEST_EXPONENT)
        seconds = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0**exponent)
        jitter = self.jitter_min + rand() * (self.jitter_max - self.jitter_min)
        return max(self.floor, type(self.base)(seconds=seconds * jitter))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The attempts made so far, and when to try again; None means never (FAILED)."""

    attempt_count: int
    retry_after: timedelta | None


def judge(
    settings: LeaseSettings, attempts_before: int, rand: Callable[[], float], *, permanent: bool = False
) -> Verdict:
    """After one more failed attempt. A permanent failure, or the last of the attempts, is not tried again (O5)."""
    attempts = attempts_before + 1
    if permanent or attempts >= settings.max_attempts:
        return Verdict(attempts, None)
    return Verdict(attempts, settings.backoff.delay(attempts, rand))
