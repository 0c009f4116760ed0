"""C10: the circuit breaker: when it opens, who tries, what closes it; with time as an input."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from grantwire.notifications.senders import SenderSettings
from grantwire.notifications.senders.breaker import BreakerSender
from grantwire.notifications.senders.factory import build_breaker
from grantwire.notifications.senders.log import LogSender
from grantwire.settings import load
from grantwire_idempotency.circuit_breaker import CircuitBreaker
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
from tests.support.concurrency import at_once
from tests.support.workers.deliver_receiver import notification
from tests.unit.idempotency.doubles import logged

REST = timedelta(seconds=5)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """What time it is."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    """Opens after three failures, for five seconds."""
    return CircuitBreaker("receiver", failures=3, rest=REST, clock=clock)


def fail(breaker: CircuitBreaker, times: int = 1, error: BaseException | None = None) -> None:
    """Guarded calls that fail."""
    error = error or RetryableError("no answer")
    for _ in range(times):
        with pytest.raises(type(error)), breaker.guard():
            raise error


def succeed(breaker: CircuitBreaker) -> None:
    """A guarded call that gets an answer."""
    with breaker.guard():
        pass


def is_refused(breaker: CircuitBreaker) -> bool:
    """Whether a call is not made; one that is made says nothing about the server."""
    try:
        breaker.guard().__enter__()
    except CircuitOpenError:
        return True
    return False


def test_it_opens_after_so_many_failures_in_a_row(breaker: CircuitBreaker) -> None:
    """C10: then calls are refused at once, with an error that says to try later."""
    fail(breaker, 2)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed
    assert breaker.open_for() == 5
    with pytest.raises(CircuitOpenError, match="receiver keeps failing") as caught, breaker.guard():
        pytest.fail("the call was made")
    assert isinstance(caught.value, RetryableError)


def test_an_answer_in_between_begins_the_count_anew(breaker: CircuitBreaker) -> None:
    """C10: a server that fails now and then is not away."""
    for _ in range(5):
        fail(breaker, 2)
        succeed(breaker)
    assert breaker.closed


@pytest.mark.parametrize(
    "answer",
    [
        RejectedError("no"),
        InternalError("a constraint"),
        LeaseLostError("somebody else has it"),
        RequestInProgressError("somebody is at it"),
        LockHeldError("somebody holds it"),
    ],
)
def test_an_error_that_the_server_gave_is_an_answer(
    breaker: CircuitBreaker, clock: Clock, answer: BaseException
) -> None:
    """C10: who has the work, or that it is refused, only a server that is well can say; it closes the circuit too."""
    fail(breaker, 2)
    fail(breaker, error=answer)
    fail(breaker, 2)
    assert breaker.closed
    fail(breaker)
    clock.now += 5
    fail(breaker, error=answer)
    assert breaker.closed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), ZeroDivisionError(), CircuitOpenError("inner")])
def test_what_says_nothing_about_the_server_neither_counts_nor_closes(
    breaker: CircuitBreaker, clock: Clock, error: BaseException
) -> None:
    """C10: an interrupt, a bug, another circuit further inside."""
    fail(breaker, 2)
    fail(breaker, 10, error=error)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed
    clock.now += 5
    fail(breaker, error=error)
    assert not breaker.closed
    assert breaker.open_for() == 5


def test_not_knowing_is_a_failure(breaker: CircuitBreaker) -> None:
    """C10: an answer that did not come is none."""
    fail(breaker, 3, error=AmbiguousError("lost"))
    assert not breaker.closed


def test_after_its_rest_one_call_is_a_trial_and_others_wait_for_it(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: half-open: not a moment before; while it runs nobody else is let through."""
    fail(breaker, 3)
    clock.now += 4.999
    assert is_refused(breaker)
    clock.now += 0.001
    assert breaker.open_for() == 0
    with breaker.guard():
        assert is_refused(breaker)
    assert breaker.closed
    assert not is_refused(breaker)


def test_a_failed_trial_opens_it_for_another_rest(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: one failure suffices; the rest is counted from the end of the trial."""
    fail(breaker, 3)
    clock.now += 5
    trial = breaker.guard()
    trial.__enter__()
    clock.now += 3
    assert not trial.__exit__(RetryableError, RetryableError("still away"), None)
    assert breaker.open_for() == 5
    assert is_refused(breaker)


def test_a_trial_that_never_ends_does_not_keep_it_open_for_ever(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: its thread was killed with the invocation; the next trial comes a rest later."""
    fail(breaker, 3)
    clock.now += 5
    hangs = breaker.guard()
    hangs.__enter__()
    assert is_refused(breaker)
    clock.now += 5
    succeed(breaker)
    assert breaker.closed


def test_after_closing_it_counts_from_nothing(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: the failures before the outage are forgotten."""
    fail(breaker, 3)
    clock.now += 5
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.closed


def test_what_began_before_it_opened_says_nothing_about_now(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: late successes do not close it, late failures do not put the trial off, nor count after it closed."""
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


def test_an_old_failure_does_not_count_after_it_closed(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: the server is back since."""
    old = breaker.guard()
    old.__enter__()
    fail(breaker, 3)
    clock.now += 5
    succeed(breaker)
    fail(breaker, 2)
    assert not old.__exit__(RetryableError, RetryableError("old"), None)
    assert breaker.closed


def test_a_forced_call_is_made_and_counts_like_a_trial(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: also while it is open; its failure puts the next trial off, its answer closes the circuit."""
    fail(breaker, 3)
    clock.now += 3
    with pytest.raises(RetryableError, match="still away"), breaker.guard(force=True):
        raise RetryableError("still away")
    assert breaker.open_for() == 5
    with breaker.guard(force=True):
        pass
    assert breaker.closed


def test_of_many_threads_one_makes_the_trial(breaker: CircuitBreaker, clock: Clock) -> None:
    """C10: real threads, again and again; and guarded calls run side by side."""
    for _ in range(20):
        with pytest.raises(RetryableError), breaker.guard(force=True):
            raise RetryableError("away")
        if breaker.closed:
            fail(breaker, 2)
        clock.now += 5
        decided = threading.Barrier(8)

        def enter(_: int, decided: threading.Barrier = decided) -> bool:
            try:
                with breaker.guard():
                    decided.wait(timeout=10)
            except CircuitOpenError:
                decided.wait(timeout=10)
                return False
            return True

        assert at_once(8, enter).count(True) == 1
        assert breaker.closed
    together = threading.Barrier(8)

    def meet(_: int) -> None:
        with breaker.guard():
            together.wait(timeout=10)

    at_once(8, meet)


def test_failures_of_many_threads_are_all_counted(clock: Clock) -> None:
    """C10: none is lost, and it opens exactly once."""
    breaker = CircuitBreaker("receiver", failures=400, rest=REST, clock=clock)

    def work(_: int) -> None:
        fail(breaker, 50)

    at_once(7, work)
    assert breaker.closed
    fail(breaker, 49)
    assert breaker.closed
    fail(breaker)
    assert not breaker.closed


def test_it_says_when_it_opens_and_when_it_closes(
    breaker: CircuitBreaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: one line each, however many calls are refused or trials fail in between."""
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
    assert (opened["failures"], opened["reason"]) == (3, "no answer")
    assert (closed["message"], closed["level"], closed["circuit"]) == ("circuit closed", "WARNING", "receiver")


@pytest.mark.parametrize(("failures", "rest"), [(0, REST), (-1, REST), (1, timedelta(0))])
def test_a_circuit_that_makes_no_sense_is_refused(failures: int, rest: timedelta) -> None:
    """One that is always open, or never."""
    with pytest.raises(ConfigError, match="failures must be at least 1"):
        CircuitBreaker("receiver", failures=failures, rest=rest)


WEBHOOK = {"NOTIFICATION_SENDER": "webhook", "NOTIFICATION_WEBHOOK_URL": "https://receiver.example/hook"}
TOPIC = {"NOTIFICATION_SENDER": "sns", "NOTIFICATION_SNS_TOPIC_ARN": "arn:aws:sns:eu-west-1:123456789012:topic"}


@pytest.mark.parametrize("sender", [WEBHOOK, TOPIC])
def test_webhook_and_topic_have_a_circuit_by_default(sender: dict[str, str]) -> None:
    """C10: twenty failures in a row, five seconds."""
    breaker = build_breaker(load(SenderSettings, sender))
    assert breaker is not None
    assert breaker.name == f"sender {sender['NOTIFICATION_SENDER']}"
    fail(breaker, 19)
    assert breaker.closed
    fail(breaker)
    assert 0 < breaker.open_for() <= 5


def test_the_log_needs_none_and_it_can_be_switched_off() -> None:
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
def test_a_setting_out_of_range_is_named(name: str, value: str) -> None:
    """Before the function begins."""
    with pytest.raises(ConfigError, match=name):
        load(SenderSettings, WEBHOOK | {name: value})


def test_a_sender_behind_a_circuit_is_not_called_while_it_is_open(
    breaker: CircuitBreaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """C10: otherwise it sends as before, as many at once as before."""
    sender = BreakerSender(LogSender(), breaker)
    assert sender.concurrency == LogSender.concurrency
    sender.send(notification())
    assert capsys.readouterr().out.count('"notification"') == 1
    fail(breaker, 3)
    capsys.readouterr()
    with pytest.raises(CircuitOpenError):
        sender.send(notification())
    assert capsys.readouterr().out == ""
