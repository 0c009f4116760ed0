"""Exponential backoff: the delay before the next attempt. All of Grantwire uses this class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# 2 ** 62 seconds is longer than any cap; beyond it a float would overflow before the cap applies.
_MAX_EXPONENT = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter: `min(cap, base * 2^(attempt - 1)) * jitter`, never below the floor (O4).

    The jitter is a random factor between `jitter_min` and `jitter_max`. It spreads the retries of workers that failed
    at the same moment. With both bounds at 1 the delays are the same every time.
    """

    base: timedelta
    cap: timedelta
    floor: timedelta
    jitter_min: float
    jitter_max: float

    def delay(self, attempt: int, rand: Callable[[], float]) -> timedelta:
        """Return the delay after failed attempt number `attempt`, counted from 1; `rand` returns a number in [0, 1)."""
        exponent = min(attempt - 1, _MAX_EXPONENT)
        seconds = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0**exponent)
        jitter = self.jitter_min + rand() * (self.jitter_max - self.jitter_min)
        return max(self.floor, timedelta(seconds=seconds * jitter))
