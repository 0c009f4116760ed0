"""O7: how long a worker works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.workers.budget import Budget


@dataclass
class Context:
    """As much of Lambda's context as counts here."""

    milliseconds: int

    def get_remaining_time_in_millis(self) -> int:
        """Until the function is killed."""
        return self.milliseconds


def test_an_ordinary_invocation_works_past_its_successor_s_start() -> None:
    """63 s of a minute's schedule, within a timeout of 75 s."""
    budget = Budget.from_event({}, Context(75_000), clock=lambda: 1000.0)
    assert (budget.remaining(), budget.until_idle) == (63.0, False)


def test_an_event_may_ask_for_less() -> None:
    """As the event files for `sam local invoke` do."""
    budget = Budget.from_event({"budget": "3s", "until": "idle"}, Context(75_000), clock=lambda: 1000.0)
    assert (budget.remaining(), budget.until_idle) == (3.0, True)


def test_the_function_s_timeout_is_respected_with_room_to_clean_up() -> None:
    """No lease may be held when the function is killed."""
    assert Budget.from_event({}, Context(20_000), clock=lambda: 0.0).remaining() == 15.0
    assert Budget.from_event({"budget": "1h"}, Context(1_000), clock=lambda: 0.0).is_over()


def test_time_runs() -> None:
    """The clock is passed in."""
    now = [0.0]
    budget = Budget.from_event({"budget": "2s"}, None, clock=lambda: now[0])
    assert not budget.is_over()
    now[0] = 2.0
    assert budget.is_over()
    now[0] = 9.0
    assert budget.remaining() == 0.0


@pytest.mark.parametrize("event", [{"budget": "3"}, {"budget": 3}, {"until": "tomorrow"}])
def test_a_bad_event_is_refused(event: dict[str, Any]) -> None:
    """With what it should have been."""
    with pytest.raises(BadRequestError, match="must be"):
        Budget.from_event(event, None)
