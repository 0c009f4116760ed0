"""How long a worker may go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.settings import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# An ordinary invocation works for 63 s: three seconds beside its successor, so that no second is unserved.
_WORKS_FOR = timedelta(seconds=63)
# What an invocation keeps of its remaining time to give back what it holds.
_RESERVE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Budget:
    """Work until `deadline` by `clock`; if `until_idle`, only while there is something to do."""

    deadline: float
    until_idle: bool = False
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def from_event(cls, event: Mapping[str, Any], context: Any, clock: Callable[[], float] = time.monotonic) -> Budget:
        """What the event asks for, within what the function's timeout leaves."""
        try:
            length = parse_duration(str(event["budget"])) if "budget" in event else _WORKS_FOR
        except ValueError as error:
            raise BadRequestError(f"budget {error}") from None
        until = event.get("until", "deadline")
        if until not in {"deadline", "idle"}:
            raise BadRequestError(f"until must be idle or deadline, not {until!r}")
        if context is not None and hasattr(context, "get_remaining_time_in_millis"):
            left = timedelta(milliseconds=context.get_remaining_time_in_millis()) - _RESERVE
            length = max(timedelta(0), min(length, left))
        return cls(clock() + length.total_seconds(), until == "idle", clock)

    def remaining(self) -> float:
        """Seconds to go; never negative."""
        return max(0.0, self.deadline - self.clock())

    def overrun(self) -> float:
        """Seconds since the budget ended; 0 before."""
        return max(0.0, self.clock() - self.deadline)

    def is_over(self) -> bool:
        """Whether it is time to stop."""
        return self.remaining() <= 0
