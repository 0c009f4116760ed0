"""Exponential backoff: the delay before the next attempt. All of Grantwire uses this class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

# 2 ** 62 seconds is longer than any cap; beyond it a float would overflow before the cap applies.
_MAX_EXPONENT = 62
_TIME = "must be a timedelta of at least zero, such as timedelta(seconds=1)"
_FACTOR = "must be a number of at least zero, such as 0.5"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter: `min(cap, base * 2^(attempt - 1)) * jitter`, never below the floor (O4).

    The jitter is a random factor between `jitter_min` and `jitter_max`. It spreads the retries of workers that failed
    at the same moment. With both bounds at 1 the delays are the same every time. Raises ConfigError with every invalid
    field.
    """

    base: timedelta
    cap: timedelta
    floor: timedelta
    jitter_min: float
    jitter_max: float

    def __post_init__(self) -> None:
        """Validate all fields."""
        times = {"base": self.base, "cap": self.cap, "floor": self.floor}
        factors = {"jitter_min": self.jitter_min, "jitter_max": self.jitter_max}
        problems = [
            *(f"{name} of a Backoff {_TIME}, not {time!r:.60}" for name, time in times.items() if not _is_time(time)),
            *(
                f"{name} of a Backoff {_FACTOR}, not {factor!r:.60}"
                for name, factor in factors.items()
                if not _is_factor(factor)
            ),
        ]
        if not problems and self.jitter_min > self.jitter_max:
            problems.append("jitter_min of a Backoff must not be larger than jitter_max")
        if problems:
            raise ConfigError(problems)

    def delay(self, attempt: int, rand: Callable[[], float]) -> timedelta:
        """Return the delay after failed attempt number `attempt`, counted from 1; `rand` returns a number in [0, 1)."""
        exponent = min(attempt - 1, _MAX_EXPONENT)
        seconds = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0**exponent)
        jitter = self.jitter_min + rand() * (self.jitter_max - self.jitter_min)
        return max(self.floor, timedelta(seconds=seconds * jitter))


def _is_time(value: object) -> bool:
    return isinstance(value, timedelta) and value >= timedelta(0)


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
