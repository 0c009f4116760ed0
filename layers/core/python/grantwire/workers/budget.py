"""The time budget of a worker invocation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.settings import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A schedule starts an invocation every 60 s. The overlap of 3 s prevents a gap between two invocations.
_DEFAULT_LENGTH = timedelta(seconds=63)
# Time before the function timeout that is kept free to write outcomes and release claimed rows.
_SHUTDOWN_RESERVE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Budget:
    """A deadline on `clock`. With `until_idle`, the worker also stops when there is nothing to do.

    `linger` is how long such a worker waits for more work. It raises the first error, unless `retries_when_idle`.
    """

    deadline: float
    until_idle: bool = False
    clock: Callable[[], float] = time.monotonic
    linger: float = 0.0
    retries_when_idle: bool = False

    @classmethod
    def from_event(cls, event: Mapping[str, Any], context: Any, clock: Callable[[], float] = time.monotonic) -> Budget:
        """Return the budget that the event asks for, limited by the remaining time of the invocation.

        A schedule adds `idle`, how long the worker waits for more work before it stops; an outage does not end it. A
        person who invokes a worker until it is idle gets the first error at once. Raises BadRequestError for an invalid
        `budget`, `until` or `idle`.
        """
        length, linger = _duration(event, "budget", _DEFAULT_LENGTH), _duration(event, "idle", timedelta(0))
        until = event.get("until", "deadline")
        if until not in {"deadline", "idle"}:
            raise BadRequestError(f"until must be idle or deadline, not {until!r}")
        if context is not None and hasattr(context, "get_remaining_time_in_millis"):
            available = timedelta(milliseconds=context.get_remaining_time_in_millis()) - _SHUTDOWN_RESERVE
            length = max(timedelta(0), min(length, available))
        return cls(clock() + length.total_seconds(), until == "idle", clock, linger.total_seconds(), "idle" in event)

    def remaining(self) -> float:
        """Return the seconds until the deadline, 0 after it."""
        return max(0.0, self.deadline - self.clock())

    def longest_wait(self, seconds: float) -> float:
        """Return for how long a step may wait for work: `seconds` at most, and not if it should stop when idle."""
        return 0.0 if self.until_idle and not self.linger else min(seconds, self.remaining())

    @property
    def retries(self) -> bool:
        """Whether the worker retries while a dependency is unavailable."""
        return self.retries_when_idle or not self.until_idle

    def overrun(self) -> float:
        """Return the seconds since the deadline, 0 before it."""
        return max(0.0, self.clock() - self.deadline)

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.remaining() <= 0


def _duration(event: Mapping[str, Any], name: str, default: timedelta) -> timedelta:
    try:
        return parse_duration(str(event[name])) if name in event else default
    except ValueError as error:
        raise BadRequestError(f"{name} {error}") from None
