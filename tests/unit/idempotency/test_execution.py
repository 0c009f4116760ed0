"""C5, C6: one guarded run, and what it does about a store that fails before, during and after the work."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import Claim, FailMode, Key, KeyState, KeyStatus, MemoryStore, Outcome
from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    CircuitOpenError,
    InternalError,
    LeaseLostError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.execution import Execution
from grantwire_idempotency.logs import key_fingerprint
from tests.support.concurrency import at_once
from tests.unit.idempotency.doubles import Counted, Time, Trouble, logged

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=1)
KEY = Key("order:1")
DOWN = "temporarily unavailable"


class Job:
    """A job over a store that may fail, and what it has done."""

    def __init__(self, fail_mode: FailMode = FailMode.CLOSED, **options: Any) -> None:
        self.time = Time()
        self.store = Trouble(MemoryStore(clock=self.time.clock))
        self.metrics = Counted()
        self.runs = 0
        wiring: dict[str, Any] = {"name": "job", "ttl": HOUR, "metrics": self.metrics} | options
        self.execution = Execution(self.store, fail_mode=fail_mode, sleep=self.time.sleep, **wiring)

    def run(self, value: Any = "done", key: Key = KEY) -> Outcome:
        """One call of the job."""

        def work() -> Any:
            self.runs += 1
            if isinstance(value, BaseException):
                raise value
            return value() if callable(value) else value

        return self.execution.run(key, LEASE, work)

    def kept(self, key: str = "job:order:1") -> KeyState | None:
        """What the store knows."""
        return self.store.inner.get_result(Key(key))


def test_a_duplicate_gets_the_first_result_without_work() -> None:
    """C5: and as JSON gives it back; None too."""
    for value, again in [({"a": (1, 2)}, {"a": [1, 2]}), (None, None), ("", ""), (0, 0)]:
        job = Job()
        assert job.run(value) == Outcome(value, replayed=False)
        assert job.run("something else") == Outcome(again, replayed=True)
        assert job.runs == 1
        assert job.metrics.checks == [("job", "new"), ("job", "duplicate")]
        assert all(0 <= seconds < 60 for seconds in job.metrics.seconds)


def test_the_same_key_of_another_job_is_another_key() -> None:
    """Two jobs may share a store."""
    one, other = Job(), Job(name="other")
    other.store.inner = one.store.inner
    assert not one.run().replayed
    assert not other.run().replayed


def test_after_its_time_to_live_a_key_is_new_again() -> None:
    """C5: and not a moment earlier."""
    job = Job()
    job.run("first")
    job.time.advance(HOUR - timedelta(microseconds=1))
    assert job.run("second") == Outcome("first", replayed=True)
    job.time.advance(timedelta(microseconds=1))
    assert job.run("second") == Outcome("second", replayed=False)


def test_while_it_runs_others_are_told_to_come_back() -> None:
    """In progress is neither new nor a duplicate, but counts as the latter; the error can be retried."""
    job = Job()

    def nested() -> str:
        with pytest.raises(RequestInProgressError, match="in progress; retry when it has ended, in 60 s") as refused:
            job.run("never")
        assert isinstance(refused.value, RetryableError)
        return "done"

    assert job.run(nested).value == "done"
    assert job.runs == 1
    assert job.metrics.checks == [("job", "new"), ("job", "duplicate")]


def test_of_many_at_once_one_runs() -> None:
    """Everybody else gets its result, or is told to come back."""
    job = Job()

    def call(_: int) -> object:
        try:
            return job.run().value
        except RequestInProgressError:
            return "in progress"

    assert set(at_once(16, call)) <= {"done", "in progress"}
    assert job.runs == 1


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), RetryableError("later")])
def test_a_run_that_fails_frees_its_key(error: BaseException) -> None:
    """C5: a retry runs; the error is kept to be looked up, and the caller gets the very same."""
    job = Job()
    with pytest.raises(type(error)) as raised:
        job.run(error)
    assert raised.value is error
    kept = job.kept()
    assert kept is not None
    assert kept.status is KeyStatus.FAILED
    assert type(error).__name__ in (kept.error or "")
    assert job.run("second") == Outcome("second", replayed=False)


def test_an_error_that_cannot_be_printed_is_still_the_caller_s() -> None:
    """Neither its text nor the store's limits may hide it."""

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for error in (UnprintableError(), ValueError("\x00\ud800" * 5000)):
        job = Job()
        with pytest.raises(type(error)):
            job.run(error)
        assert not job.run().replayed


@pytest.mark.parametrize("down", [RetryableError(DOWN), CircuitOpenError(DOWN), AmbiguousError(DOWN)])
def test_open_runs_without_the_store_and_warns(down: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """C6, 004: the default of jobs."""
    job = Job(FailMode.OPEN)
    job.store.failing = {"check": [down, down]}
    assert [job.run().value, job.run().value] == ["done", "done"]
    assert job.runs == 2
    assert job.store.calls == ["check", "check"]
    assert job.metrics.checks == [("job", "error"), ("job", "error")]
    assert job.metrics.unguarded_runs == ["job", "job"]
    first, _ = logged(caplog, "WARNING", "ERROR")
    assert (first["level"], first["message"]) == ("WARNING", "idempotency check failed, processing anyway")
    assert (first["error"], first["task_type"]) == (DOWN, "job")


def test_closed_does_not_run_without_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """C6, 004: an ERROR, and the store's error to the caller."""
    job = Job(FailMode.CLOSED)
    job.store.failing = {"check": [RetryableError(DOWN)]}
    with pytest.raises(RetryableError, match=DOWN):
        job.run()
    assert job.runs == 0
    assert (job.metrics.checks, job.metrics.unguarded_runs) == ([("job", "error")], [])
    assert all(0 <= seconds < 60 for seconds in job.metrics.seconds)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert (line["level"], line["message"]) == ("ERROR", "idempotency check failed")


@pytest.mark.parametrize("fail_mode", FailMode)
@pytest.mark.parametrize("error", [InternalError("a bug"), BadRequestError("a key that this store cannot hold")])
def test_what_is_no_outage_is_never_swallowed(fail_mode: FailMode, error: Exception) -> None:
    """OPEN is for a store that is down, not for one that is broken."""
    job = Job(fail_mode)
    job.store.failing = {"check": [error]}
    with pytest.raises(type(error)):
        job.run()
    assert job.runs == 0
    assert job.metrics.checks == [("job", "error")]


@pytest.mark.parametrize("fail_mode", FailMode)
def test_a_hiccup_after_the_work_does_not_lose_the_result(fail_mode: FailMode) -> None:
    """The store is told again, after short pauses."""
    job = Job(fail_mode)
    job.store.failing = {"store_result": [RetryableError(DOWN)] * 2}
    assert job.run() == Outcome("done", replayed=False)
    assert job.run() == Outcome("done", replayed=True)
    assert job.time.slept == [0.2, 0.4]


@pytest.mark.parametrize(("fail_mode", "level"), [(FailMode.OPEN, "WARNING"), (FailMode.CLOSED, "ERROR")])
def test_work_that_is_done_is_not_reported_as_failed(
    fail_mode: FailMode, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The effect has happened: an error would make the caller repeat it. Until the claim ends, nobody does."""
    job = Job(fail_mode)
    job.store.failing = {"store_result": [RetryableError(DOWN)] * 3}
    assert job.run() == Outcome("done", replayed=False)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert line["level"] == level
    assert "the store did not take its result" in line["message"]
    with pytest.raises(RequestInProgressError):
        job.run()
    job.time.advance(LEASE)
    assert job.run() == Outcome("done", replayed=False)


@pytest.mark.parametrize("fail_mode", FailMode)
def test_a_key_that_somebody_else_took_is_a_loud_error(fail_mode: FailMode, caplog: pytest.LogCaptureFixture) -> None:
    """The run outlived its claim, another one has run: a retry gets what that one stored."""
    job = Job(fail_mode)

    def slow() -> str:
        job.time.advance(LEASE)
        assert job.run("the other's").value == "the other's"
        return "too late"

    with pytest.raises(LeaseLostError):
        job.run(slow)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert line["level"] == "ERROR"
    assert "effect may be duplicated" in line["message"]
    assert job.time.slept == []
    assert job.run() == Outcome("the other's", replayed=True)


def test_a_claim_that_ran_out_still_counts_if_nobody_took_the_key() -> None:
    """The work was slow, and no harm was done."""
    job = Job()

    def slow() -> str:
        job.time.advance(2 * LEASE)
        return "slow"

    assert job.run(slow).value == "slow"
    assert job.run() == Outcome("slow", replayed=True)


def circular() -> list[Any]:
    """A list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    """A list in a list, deeper than any encoder goes."""
    found: list[Any] = []
    for _ in range(200_000):
        found = [found]
    return found


@pytest.mark.parametrize("make", [object, lambda: {1, 2}, lambda: float("nan"), lambda: {b"x": 1}, circular, deep])
def test_a_result_that_is_no_json_leaves_nothing_in_progress(make: Callable[[], Any]) -> None:
    """C5: a clear error; the effect has happened, so the key is completed and nobody runs it again."""
    job = Job()
    with pytest.raises(InternalError, match="return JSON values only"):
        job.run(make())
    assert job.kept() == KeyState(KeyStatus.COMPLETED)
    assert job.run() == Outcome(None, replayed=True)
    assert job.runs == 1


def test_a_result_that_the_store_refuses_is_treated_alike() -> None:
    """Too large for it, for instance."""
    job = Job()
    job.store.failing = {"store_result": [BadRequestError("the result is too large")]}
    with pytest.raises(InternalError, match="the result is too large"):
        job.run()
    assert job.kept() == KeyState(KeyStatus.COMPLETED)


@pytest.mark.parametrize("again", [[], [InternalError("another bug")], [LeaseLostError("taken")]])
def test_a_store_that_breaks_after_the_work_is_not_hidden(again: list[Exception]) -> None:
    """An InternalError is a bug somewhere, whatever the fail mode; without the result the store may take the key."""
    job = Job(FailMode.OPEN)
    job.store.failing = {"store_result": [InternalError("a bug"), *again]}
    with pytest.raises(InternalError, match="a bug"):
        job.run()
    assert job.store.calls == ["check", "store_result", "store_result"]
    assert job.kept() == (KeyState(KeyStatus.IN_PROGRESS) if again else KeyState(KeyStatus.COMPLETED))


@pytest.mark.parametrize("trouble", [RetryableError(DOWN), InternalError("a bug")])
def test_the_work_s_own_error_comes_first(trouble: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """C5: the store fails as well, when the key is to be freed; that is logged."""
    job = Job()
    job.store.failing = {"store_failure": [trouble] * 3}
    with pytest.raises(ValueError, match="the work's own"):
        job.run(ValueError("the work's own"))
    (line,) = logged(caplog, "ERROR")
    assert "retry must wait until claim expires" in line["message"]
    job.time.advance(LEASE)
    assert not job.run().replayed


def test_a_hiccup_does_not_keep_a_failed_key() -> None:
    """C5: the store is told again."""
    job = Job()
    job.store.failing = {"store_failure": [RetryableError(DOWN)]}
    with pytest.raises(ValueError, match="no"):
        job.run(ValueError("no"))
    assert not job.run().replayed


def test_a_key_has_room_beside_the_job_s_name() -> None:
    """A clear error, before anything is claimed or done."""
    job = Job(name="j" * 100)
    assert job.run(key=Key("k" * 155)).value == "done"
    with pytest.raises(BadRequestError, match="at most 155 characters"):
        job.run(key=Key("k" * 156))
    assert job.runs == 1
    assert job.store.calls == ["check", "store_result"]


def test_what_people_find_in_the_store() -> None:
    """The message's id, and the job's name for its type."""
    job = Job()
    seen: list[Key] = []
    inner = job.store.inner.store_result

    def note(claim: Claim, result: str | None, ttl: timedelta) -> None:
        seen.append(claim.key)
        inner(claim, result, ttl)

    job.store.inner.store_result = note  # type: ignore[method-assign]
    job.run(key=Key("order:1", 7, "m_1", "a type"))
    assert seen == [Key("job:order:1", 7, "m_1", "job")]


def test_a_stored_result_that_is_no_json_is_an_internal_error() -> None:
    """Somebody else wrote under this job's keys."""
    job = Job()
    claim = job.store.inner.check(Key("job:order:1"), LEASE)
    assert isinstance(claim, Claim)
    job.store.inner.store_result(claim, "not JSON", HOUR)
    with pytest.raises(InternalError, match="not JSON"):
        job.run()


def test_metrics_that_fail_cost_no_work(caplog: pytest.LogCaptureFixture) -> None:
    """C11: counting is never a reason to lose a claim, a result or a message."""

    class Broken:
        def record_check(self, *_: object) -> None:
            raise OSError("metrics are down")

        record_unguarded_run = record_check

        def flush(self) -> None:
            raise OSError("metrics are down")

    job = Job(FailMode.OPEN, metrics=Broken())
    assert job.run().value == "done"
    job.store.failing = {"check": [RetryableError(DOWN)]}
    assert job.run().value == "done"
    job.execution.flush()
    assert [line["message"] for line in logged(caplog, "ERROR")] == ["could not write idempotency metrics"] * 4


@pytest.mark.usefixtures("debug")
def test_a_key_is_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    """004: the duplicate with its key and type at DEBUG; above that a fingerprint is all."""
    job = Job()
    job.run()
    job.run()
    (line,) = logged(caplog, "DEBUG")
    assert line["message"] == "duplicate task skipped"
    assert (line["idempotency_key"], line["task_type"]) == ("job:order:1", "job")
    job.store.failing = {"store_result": [RetryableError(DOWN)] * 3, "store_failure": [RetryableError(DOWN)] * 3}
    job.run(key=Key("order:2"))
    with pytest.raises(ValueError, match="no"):
        job.run(ValueError("no"), key=Key("order:3"))
    job.store.failing = {"check": [RetryableError(DOWN)]}
    with pytest.raises(RetryableError):
        job.run(key=Key("order:4"))
    lines = logged(caplog, "INFO", "WARNING", "ERROR")
    assert [line.get("key") for line in lines[:2]] == [key_fingerprint("job:order:2"), key_fingerprint("job:order:3")]
    assert len(lines) == 3
    assert "order:" not in str(lines)
