"""C10: when the circuit breaker opens, makes a trial call and closes, with a fake clock."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from grantwire.notifications.senders import SenderSettings
from grantwire.notifications.senders.breaker import BreakerSender
from grantwire.notifications.senders.factory import build_breaker
from grantwire.notifications.senders.log import LogSender
from grantwire.settings import load
from grantwire_idempotency import CircuitBreaker
from grantwire_idempotency.errors import (
    AmbiguousError,
    CircuitOpenError,
    ConfigError,
    InternalError,
    LeaseLostError,
    LockHeldError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import logged
from tests.support.concurrency import run_concurrently
from tests.support.workers.deliver_receiver import notification

REST = timedelta(seconds=5)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that does not advance on its own."""
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    """A circuit breaker that opens after three failures, for five seconds."""
    return CircuitBreaker("receiver", failures=3, rest=REST, clock=clock)


def fail(breaker: CircuitBreaker, times: int = 1, error: BaseException | None = None) -> None:
    """Make guarded calls that fail."""
    error = error or RetryableError("no response")
    for _ in range(times):
        with pytest.raises(type(error)), breaker.guard():
            raise error


def succeed(breaker: CircuitBreaker) -> None:
    """Make a guarded call that succeeds."""
    with breaker.guard():
        pass


def is_refused(breaker: CircuitBreaker) -> bool:
    """Return whether a call is refused. A call that is allowed is never finished, so it does not count."""
    try:
        breaker.guard().__enter__()
    except CircuitOpenError:
        return True
    return False


def test_circuit_opens_after_consecutive_failures(breaker: CircuitBreaker) -> None:
    """C10: then calls are refused immediately with a retryable error."""
    fail(breaker, 2)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed
    assert breaker.open_for() == 5
    with pytest.raises(CircuitOpenError, match="receiver keeps failing") as caught, breaker.guard():
        pytest.fail("the call was made")
    assert isinstance(caught.value, RetryableError)


def test_success_resets_the_failure_count(breaker: CircuitBreaker) -> None:
    """C10: a server that fails only sometimes is not unavailable."""
    for _ in range(5):
        fail(breaker, 2)
        succeed(breaker)
    assert breaker.closed


@pytest.mark.parametrize(
    "error",
    [
        RejectedError("no"),
        InternalError("a constraint"),
        LeaseLostError("another worker has it"),
        RequestInProgressError("another request runs"),
        LockHeldError("another process holds it"),
    ],
)
def test_error_response_of_a_working_server_counts_as_success(
    breaker: CircuitBreaker, clock: Clock, error: BaseException
) -> None:
    """C10: only a working server can return these errors, so they also close the circuit."""
    fail(breaker, 2)
    fail(breaker, error=error)
    fail(breaker, 2)
    assert breaker.closed
    fail(breaker)
    clock.now += 5
    fail(breaker, error=error)
    assert breaker.closed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), ZeroDivisionError(), CircuitOpenError("inner")])
def test_error_unrelated_to_the_server_neither_counts_nor_closes(
    breaker: CircuitBreaker, clock: Clock, error: BaseException
) -> None:
    """C10: an interrupt, a bug, or another open circuit inside the call."""
    fail(breaker, 2)
    fail(breaker, 10, error=error)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed
    clock.now += 5
    fail(breaker, error=error)
    assert not breaker.closed
    assert breaker.open_for() == 5


def test_unknown_outcome_is_a_failure(breaker: CircuitBreaker) -> None:
    """C10: a missing response counts as a failure."""
    fail(breaker, 3, error=AmbiguousError("lost"))
    assert not breaker.closed


def test_after_the_rest_one_trial_call_is_allowed(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: half-open: not before the rest has ended; other calls are refused while the trial call runs."""
    fail(breaker, 3)
    clock.now += 4.999
    assert is_refused(breaker)
    clock.now += 0.001
    assert breaker.open_for() == 0
    with breaker.guard():
        assert is_refused(breaker)
    assert breaker.closed
    assert not is_refused(breaker)


def test_failed_trial_call_keeps_the_circuit_open_for_another_rest(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: one failure is enough; the rest starts at the end of the trial call."""
    fail(breaker, 3)
    clock.now += 5
    trial = breaker.guard()
    trial.__enter__()
    clock.now += 3
    assert not trial.__exit__(RetryableError, RetryableError("still unavailable"), None)
    assert breaker.open_for() == 5
    assert is_refused(breaker)


def test_trial_call_that_never_ends_does_not_block_the_next_one(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: its thread may have ended with the invocation; the next trial call is allowed one rest later."""
    fail(breaker, 3)
    clock.now += 5
    hangs = breaker.guard()
    hangs.__enter__()
    assert is_refused(breaker)
    clock.now += 5
    succeed(breaker)
    assert breaker.closed


def test_closing_resets_the_failure_count(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: failures before the circuit opened do not count."""
    fail(breaker, 3)
    clock.now += 5
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.closed


def test_calls_from_before_opening_do_not_change_an_open_circuit(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: a late success does not close it, and a late failure does not delay the trial call."""
    slow = breaker.guard()
    slow.__enter__()
    slower = breaker.guard()
    slower.__enter__()
    fail(breaker, 3)
    clock.now += 1
    slow.__exit__(None, None, None)
    assert not breaker.closed
    late = RetryableError("late")
    assert not slower.__exit__(RetryableError, late, None)
    assert breaker.open_for() == 4
    clock.now += 4
    succeed(breaker)
    assert breaker.closed


def test_failure_from_before_opening_does_not_count_after_closing(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: the server has recovered since then."""
    old = breaker.guard()
    old.__enter__()
    fail(breaker, 3)
    clock.now += 5
    succeed(breaker)
    fail(breaker, 2)
    assert not old.__exit__(RetryableError, RetryableError("old"), None)
    assert breaker.closed


def test_forced_call_is_made_and_counts_like_a_trial_call(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: this holds while the circuit is open; a failure delays the next trial call, a success closes the circuit."""
    fail(breaker, 3)
    clock.now += 3
    with pytest.raises(RetryableError, match="still unavailable"), breaker.guard(force=True):
        raise RetryableError("still unavailable")
    assert breaker.open_for() == 5
    with breaker.guard(force=True):
        pass
    assert breaker.closed


def test_only_one_of_many_threads_makes_the_trial_call(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: repeated with real threads; while the circuit is closed, guarded calls run in parallel."""
    for _ in range(20):
        with pytest.raises(RetryableError), breaker.guard(force=True):
            raise RetryableError("unavailable")
        if breaker.closed:
            fail(breaker, 2)
        clock.now += 5
        decided = threading.Barrier(8)

        def enter(_: int, decided: threading.Barrier = decided) -> bool:
            try:
                with breaker.guard():
                    decided.wait(timeout=60)
            except CircuitOpenError:
                decided.wait(timeout=60)
                return False
            return True

        assert run_concurrently(8, enter).count(True) == 1
        assert breaker.closed
    together = threading.Barrier(8)

    def meet(_: int) -> None:
        with breaker.guard():
            together.wait(timeout=60)

    run_concurrently(8, meet)


def test_failures_of_concurrent_threads_are_all_counted(clock: Clock) -> None:
    """C10: the circuit opens after exactly the configured number of failures."""
    breaker = CircuitBreaker("receiver", failures=400, rest=REST, clock=clock)

    def work(_: int) -> None:
        fail(breaker, 50)

    run_concurrently(7, work)
    assert breaker.closed
    fail(breaker, 49)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed


def test_opening_and_closing_are_logged_once(
    breaker: CircuitBreaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: refused calls and failed trial calls in between add no lines."""
    fail(breaker, 3)
    for _ in range(3):
        assert is_refused(breaker)
        clock.now += 5
        fail(breaker)
    clock.now += 5
    succeed(breaker)
    succeed(breaker)
    opened, closed = logged(caplog, "WARNING", "ERROR")
    assert (opened["message"], opened["level"], opened["circuit"]) == ("circuit opened", "ERROR", "receiver")
    assert (opened["failures"], opened["reason"]) == (3, "no response")
    assert (closed["message"], closed["level"], closed["circuit"]) == ("circuit closed", "WARNING", "receiver")


@pytest.mark.parametrize(("failures", "rest"), [(0, REST), (-1, REST), (1, timedelta(0))])
def test_invalid_circuit_parameters_are_a_config_error(failures: int, rest: timedelta) -> None:
    """The number of failures must be at least 1, and the rest longer than 0."""
    with pytest.raises(ConfigError, match="failures must be at least 1"):
        CircuitBreaker("receiver", failures=failures, rest=rest)


WEBHOOK = {
    "NOTIFICATION_SENDER": "webhook",
    "NOTIFICATION_WEBHOOK_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:webhook",
}
TOPIC = {"NOTIFICATION_SENDER": "sns", "NOTIFICATION_SNS_TOPIC_ARN": "arn:aws:sns:eu-west-1:123456789012:topic"}


@pytest.mark.parametrize("sender", [WEBHOOK, TOPIC])
def test_webhook_and_sns_have_a_circuit_breaker_by_default(sender: dict[str, str]) -> None:
    """C10: it opens after 20 consecutive failures, for five seconds."""
    breaker = build_breaker(load(SenderSettings, sender))
    assert breaker is not None
    assert breaker.name == f"sender {sender['NOTIFICATION_SENDER']}"
    fail(breaker, 19)
    assert breaker.closed
    fail(breaker)
    assert 0 < breaker.open_for() <= 5


def test_log_sender_has_no_circuit_breaker_and_others_can_disable_it() -> None:
    """C10: NOTIFICATION_SENDER_BREAKER_FAILURES=0."""
    assert build_breaker(load(SenderSettings, {})) is None
    assert build_breaker(load(SenderSettings, WEBHOOK | {"NOTIFICATION_SENDER_BREAKER_FAILURES": "0"})) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTIFICATION_SENDER_BREAKER_FAILURES", "-1"),
        ("NOTIFICATION_SENDER_BREAKER_FAILURES", "some"),
        ("NOTIFICATION_SENDER_BREAKER_REST", "0s"),
        ("NOTIFICATION_SENDER_BREAKER_REST", "2m"),
    ],
)
def test_setting_out_of_range_is_a_config_error_with_its_name(name: str, value: str) -> None:
    """The function stops in the init phase."""
    with pytest.raises(ConfigError, match=name):
        load(SenderSettings, WEBHOOK | {name: value})


def test_sender_is_not_called_while_its_circuit_is_open(
    breaker: CircuitBreaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """C10: while the circuit is closed, the sender works unchanged, with the same concurrency."""
    sender = BreakerSender(LogSender(), breaker)
    assert sender.concurrency == LogSender().concurrency
    sender.send(notification())
    assert capsys.readouterr().out.count('"notification delivered"') == 1
    fail(breaker, 3)
    capsys.readouterr()
    with pytest.raises(CircuitOpenError):
        sender.send(notification())
    assert capsys.readouterr().out == ""
