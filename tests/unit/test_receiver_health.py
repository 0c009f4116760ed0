"""W4: what delivery reports about the receiver."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications.receiver import ReceiverHealth
from grantwire_idempotency import CircuitBreaker


class Attempts:
    """A receiver behind a circuit that opens after two failures, and what is reported about it."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.breaker = CircuitBreaker("r", failures=2, rest=timedelta(seconds=5), clock=lambda: self.seconds)
        self.health = ReceiverHealth(self.breaker, lambda: self.seconds)

    def make(self, error: Exception | None) -> dict[str, object]:
        """Make one attempt with an outcome, and return what is reported then."""
        try:
            with self.breaker.guard():
                if error is not None:
                    raise error
        except (RejectedError, RetryableError):
            pass
        self.health.record(error)
        found: dict[str, object] = self.health.facts().get("receiver", {})
        return {name: found[name] for name in ("circuit", "failures_in_a_row", "last_error")}


def test_circuit_is_reported_at_once_and_other_changes_after_seconds() -> None:
    """W4: a heartbeat for each outcome would cost too much."""
    attempts = Attempts()
    assert attempts.health.facts(now=True) == {}  # the heartbeat keeps what another execution environment found
    assert attempts.make(None) == {"circuit": "CLOSED", "failures_in_a_row": 0, "last_error": None}
    away = RetryableError("status 500")
    assert attempts.make(away) == {"circuit": "CLOSED", "failures_in_a_row": 0, "last_error": None}
    assert attempts.make(away) == {"circuit": "OPEN", "failures_in_a_row": 2, "last_error": "status 500"}
    attempts.seconds += 5
    assert attempts.make(away)["failures_in_a_row"] == 3
    attempts.seconds += 5
    assert attempts.make(None) == {"circuit": "CLOSED", "failures_in_a_row": 0, "last_error": "status 500"}


@pytest.mark.parametrize("error", [None, RejectedError("status 400")])
def test_any_response_ends_the_failures_in_a_row(error: Exception | None) -> None:
    """W4: a receiver that refuses a notification responds."""
    attempts = Attempts()
    attempts.make(RetryableError("status 500"))
    attempts.seconds += 5
    attempts.make(error)
    found = attempts.health.facts(now=True)["receiver"]
    assert (found["failures_in_a_row"], found["failing_since"], found["last_response_at"] is None) == (0, None, False)
    assert found["last_error"] == ("status 400" if error else "status 500")
