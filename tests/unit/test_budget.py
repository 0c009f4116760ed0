"""O7: the budget of a worker invocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.workers.budget import Budget


@dataclass
class Context:
    """The part of the Lambda context that Budget uses."""

    milliseconds: int

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the function timeout."""
        return self.milliseconds


def test_default_budget_overlaps_the_next_invocation() -> None:
    """It is 63 s with a schedule of 60 s and a function timeout of 75 s."""
    budget = Budget.from_event({}, Context(75_000), clock=lambda: 1000.0)
    assert (budget.remaining(), budget.until_idle) == (63.0, False)


def test_event_may_set_budget_and_until() -> None:
    """The event files for `sam local invoke` do this."""
    budget = Budget.from_event({"budget": "3s", "until": "idle"}, Context(75_000), clock=lambda: 1000.0)
    assert (budget.remaining(), budget.until_idle, budget.retries) == (3.0, True, False)
    assert budget.longest_wait(1.0) == 0.0


def test_scheduled_worker_lingers_and_retries() -> None:
    """X1: a schedule says how long a worker waits for more work; an outage does not end it."""
    budget = Budget.from_event({"until": "idle", "idle": "3s"}, Context(75_000), clock=lambda: 1000.0)
    assert (budget.remaining(), budget.linger, budget.retries) == (63.0, 3.0, True)
    assert budget.longest_wait(1.0) == 1.0
    assert Budget.from_event({"until": "idle", "idle": "0s"}, None).retries
    assert Budget.from_event({"until": "idle", "idle": "0s"}, None).longest_wait(1.0) == 0.0


def test_budget_ends_five_seconds_before_the_function_timeout() -> None:
    """The worker needs the time to release its rows."""
    assert Budget.from_event({}, Context(20_000), clock=lambda: 0.0).remaining() == 15.0
    assert Budget.from_event({"budget": "1h"}, Context(1_000), clock=lambda: 0.0).is_over()


def test_budget_is_over_after_its_deadline() -> None:
    """The remaining time is never negative."""
    now = [0.0]
    budget = Budget.from_event({"budget": "2s"}, None, clock=lambda: now[0])
    assert not budget.is_over()
    now[0] = 2.0
    assert budget.is_over()
    now[0] = 9.0
    assert budget.remaining() == 0.0


@pytest.mark.parametrize("event", [{"budget": "3"}, {"budget": 3}, {"idle": "soon"}, {"until": "tomorrow"}])
def test_invalid_event_is_rejected(event: dict[str, Any]) -> None:
    """The error names the allowed values."""
    with pytest.raises(BadRequestError, match="must be"):
        Budget.from_event(event, None)
