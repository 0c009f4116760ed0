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
    """A deadline on `clock`. With `until_idle`, the worker also stops when there is nothing to do."""

    deadline: float
    until_idle: bool = False
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def from_event(cls, event: Mapping[str, Any], context: Any, clock: Callable[[], float] = time.monotonic) -> Budget:
        """Return the budget that the event asks for, limited by the remaining time of the invocation.

        Raises BadRequestError for an invalid `budget` or `until`.
        """
        try:
            length = parse_duration(str(event["budget"])) if "budget" in event else _DEFAULT_LENGTH
        except ValueError as error:
            raise BadRequestError(f"budget {error}") from None
        until = event.get("until", "deadline")
        if until not in {"deadline", "idle"}:
            raise BadRequestError(f"until must be idle or deadline, not {until!r}")
        if context is not None and hasattr(context, "get_remaining_time_in_millis"):
            available = timedelta(milliseconds=context.get_remaining_time_in_millis()) - _SHUTDOWN_RESERVE
            length = max(timedelta(0), min(length, available))
        return cls(clock() + length.total_seconds(), until == "idle", clock)

    def remaining(self) -> float:
        """Return the seconds until the deadline, 0 after it."""
        return max(0.0, self.deadline - self.clock())

    def overrun(self) -> float:
        """Return the seconds since the deadline, 0 before it."""
        return max(0.0, self.clock() - self.deadline)

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.remaining() <= 0
