"""C5, C6: one guarded run, with store failures before, during and after the work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    Claim,
    FailMode,
    JsonSerializer,
    Key,
    KeyState,
    KeyStatus,
    MemoryStore,
    NoMetrics,
    Outcome,
    current_claim,
    idempotent,
    key_fingerprint,
)
from grantwire_idempotency._internal.foundation.steps import drive
from grantwire_idempotency._internal.jobs.execution import Execution
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency._internal.jobs.work import call_once
from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    BusyError,
    CircuitOpenError,
    InternalError,
    LeaseLostError,
    RequestInProgressError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import FailingStore, FakeTime, RecordedMetrics, logged
from tests.support.concurrency import run_concurrently

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=1)
KEY = Key("order:1")
DOWN = "temporarily unavailable"


class Job:
    """A job with a store that can fail; it records its runs."""

    def __init__(self, fail_mode: FailMode = FailMode.CLOSED, **options: Any) -> None:
        self.time = FakeTime()
        self.store = FailingStore(MemoryStore(clock=self.time.clock))
        self.metrics = RecordedMetrics()
        self.runs = 0
        wiring: dict[str, Any] = {"name": "job", "ttl": HOUR, "metrics": self.metrics} | options
        settings = ExecutionSettings(fail_mode=fail_mode, **wiring)
        self.execution = Execution(self.store, settings, sleep=self.time.sleep, clock=self.time.clock)

    def run(self, value: Any = "done", key: Key = KEY) -> Outcome:
        """Call the job."""

        def work() -> Any:
            self.runs += 1
            if isinstance(value, BaseException):
                raise value
            return value() if callable(value) else value

        return drive(self.execution.run(key, LEASE, lambda: call_once(work, is_async=False)))

    def state(self, key: str = "job:order:1") -> KeyState | None:
        """Return the state of the key in the store."""
        return self.store.inner.get_result(Key(key))


def test_duplicate_returns_stored_result_without_work() -> None:
    """C5: the result has been converted to JSON and back, also if it is None."""
    for value, again in [({"a": (1, 2)}, {"a": [1, 2]}), (None, None), ("", ""), (0, 0)]:
        job = Job()
        assert job.run(value) == Outcome(value, replayed=False)
        assert job.run("something else") == Outcome(again, replayed=True)
        assert job.runs == 1
        assert job.metrics.checks == [("job", "new"), ("job", "duplicate")]
        assert all(0 <= seconds < 60 for seconds in job.metrics.seconds)


def test_jobs_do_not_share_keys() -> None:
    """Two jobs can use one store."""
    first, second = Job(), Job(name="other")
    second.store.inner = first.store.inner
    assert not first.run().replayed
    assert not second.run().replayed


def test_key_is_new_after_ttl() -> None:
    """C5: and not one microsecond earlier."""
    job = Job()
    job.run("first")
    job.time.advance(HOUR - timedelta(microseconds=1))
    assert job.run("second") == Outcome("first", replayed=True)
    job.time.advance(timedelta(microseconds=1))
    assert job.run("second") == Outcome("second", replayed=False)


def test_key_in_progress_raises_retryable_error() -> None:
    """A key in progress counts as a duplicate in the metrics."""
    job = Job()

    def nested() -> str:
        with pytest.raises(RequestInProgressError, match="in progress; retry when it has ended, in 60 s") as raised:
            job.run("never")
        assert isinstance(raised.value, RetryableError)
        return "done"

    assert job.run(nested).value == "done"
    assert job.runs == 1
    assert job.metrics.checks == [("job", "new"), ("job", "duplicate")]


def test_one_of_many_threads_runs() -> None:
    """The others get its result or RequestInProgressError."""
    job = Job()

    def call(_: int) -> object:
        try:
            return job.run().value
        except RequestInProgressError:
            return "in progress"

    assert set(run_concurrently(16, call)) <= {"done", "in progress"}
    assert job.runs == 1


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), RetryableError("later")])
def test_failure_releases_key(error: BaseException) -> None:
    """C5: a retry runs; the error is stored, and the caller gets the same error object."""
    job = Job()
    with pytest.raises(type(error)) as raised:
        job.run(error)
    assert raised.value is error
    state = job.state()
    assert state is not None
    assert state.status is KeyStatus.FAILED
    assert type(error).__name__ in (state.error or "")
    assert job.run("second") == Outcome("second", replayed=False)


def test_unprintable_error_reaches_caller() -> None:
    """Neither its text nor the limits of the store hide the error."""

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for error in (UnprintableError(), ValueError("\x00\ud800" * 5000)):
        job = Job()
        with pytest.raises(type(error)):
            job.run(error)
        assert not job.run().replayed


@pytest.mark.parametrize("down", [RetryableError(DOWN), CircuitOpenError(DOWN), AmbiguousError(DOWN)])
def test_open_runs_without_store_and_warns(down: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """C6, 004: OPEN is the default of jobs."""
    job = Job(FailMode.OPEN)
    tries = 1 if isinstance(down, CircuitOpenError) else 2
    job.store.failing = {"check": [down] * 2 * tries}
    assert [job.run(key=Key(value)).value for value in ("1", "2")] == ["done", "done"]
    assert job.runs == 2
    assert job.store.calls == ["check"] * 2 * tries
    assert job.metrics.checks == [("job", "error"), ("job", "error")]
    assert job.metrics.unguarded_runs == ["job", "job"]
    first, _ = logged(caplog, "WARNING", "ERROR")
    assert (first["level"], first["message"]) == ("WARNING", "idempotency check failed, processing anyway")
    assert (first["error"], first["task_type"]) == (DOWN, "job")


def test_closed_does_not_run_without_store(caplog: pytest.LogCaptureFixture) -> None:
    """C6, 004: an ERROR is logged, and the caller gets the error of the store."""
    job = Job(FailMode.CLOSED)
    job.store.failing = {"check": [RetryableError(DOWN)] * 2}
    with pytest.raises(RetryableError, match=DOWN):
        job.run()
    assert job.runs == 0
    assert (job.metrics.checks, job.metrics.unguarded_runs) == ([("job", "error")], [])
    assert all(0 <= seconds < 60 for seconds in job.metrics.seconds)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert (line["level"], line["message"]) == ("ERROR", "idempotency check failed")


@pytest.mark.parametrize("fail_mode", FailMode)
@pytest.mark.parametrize("error", [InternalError("a bug"), BadRequestError("a key that this store cannot hold")])
def test_open_does_not_hide_other_store_errors(fail_mode: FailMode, error: Exception) -> None:
    """OPEN applies to an unavailable store, not to a bug."""
    job = Job(fail_mode)
    job.store.failing = {"check": [error]}
    with pytest.raises(type(error)):
        job.run()
    assert job.runs == 0
    assert job.metrics.checks == [("job", "error")]


@pytest.mark.parametrize("fail_mode", FailMode)
def test_result_is_stored_after_short_outage(fail_mode: FailMode) -> None:
    """Storing the result is retried with short delays."""
    job = Job(fail_mode)
    job.store.failing = {"store_result": [RetryableError(DOWN)] * 2}
    assert job.run() == Outcome("done", replayed=False)
    assert job.run() == Outcome("done", replayed=True)
    assert job.time.slept == [0.2, 0.4]


@pytest.mark.parametrize(("fail_mode", "level"), [(FailMode.OPEN, "WARNING"), (FailMode.CLOSED, "ERROR")])
def test_run_succeeds_if_result_cannot_be_stored(
    fail_mode: FailMode, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error would make the caller repeat the effect. The result is stored before the next check of this process."""
    job = Job(fail_mode)
    job.store.failing = {"store_result": [RetryableError(DOWN)] * 3}
    assert job.run() == Outcome("done", replayed=False)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert line["level"] == level
    assert line["message"] == "could not store result, duplicate runs again after claim expires"
    assert job.run() == Outcome("done", replayed=True)


@pytest.mark.parametrize("fail_mode", FailMode)
def test_lost_claim_raises_lease_lost_error(fail_mode: FailMode, caplog: pytest.LogCaptureFixture) -> None:
    """The run outlasted its claim and another run completed the key; a retry returns that result."""
    job = Job(fail_mode)

    def slow() -> str:
        job.time.advance(LEASE)
        assert job.run("result of the other run").value == "result of the other run"
        return "too late"

    with pytest.raises(LeaseLostError):
        job.run(slow)
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert line["level"] == "ERROR"
    assert "effect may be duplicated" in line["message"]
    assert job.time.slept == []
    assert job.run() == Outcome("result of the other run", replayed=True)


def test_run_longer_than_its_claim_cannot_complete() -> None:
    """C20: also without a competitor, unless the work extends its claim."""
    job = Job()

    def slow() -> str:
        job.time.advance(2 * LEASE)
        return "slow"

    def extended() -> str:
        current_claim().extend(3 * LEASE)
        return slow()

    with pytest.raises(LeaseLostError):
        job.run(slow)
    assert job.run(extended).value == "slow"
    assert job.run() == Outcome("slow", replayed=True)


def test_late_result_is_written_unless_the_key_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """C20: the process claims the key again, also after its claim has expired; another run keeps the key."""
    job = Job()

    def work() -> str:
        job.store.failing["store_result"] = [RetryableError(DOWN)] * 9
        return "late"

    job.run(work, Key("taken"))
    job.run(work, Key("free"))
    job.store.failing.clear()
    job.time.advance(2 * LEASE)
    other = job.store.inner.check(Key("job:taken"), LEASE)
    assert isinstance(other, Claim)
    caplog.clear()
    job.run("next", Key("next"))
    assert logged(caplog, "WARNING", "ERROR") == []
    assert job.state("job:free") == KeyState(KeyStatus.COMPLETED, '"late"')
    job.store.inner.store_result(other, '"other"', HOUR)
    assert job.state("job:taken") == KeyState(KeyStatus.COMPLETED, '"other"')


def test_late_result_whose_claim_is_lost_again_blocks_no_other() -> None:
    """C20: it is dropped, because a later run has the key."""
    job = Job()

    def work() -> str:
        job.store.failing["store_result"] = [RetryableError(DOWN)] * 9
        return "late"

    job.run(work, Key("lost"))
    job.run(work, Key("free"))
    job.store.failing = {"store_result": [LeaseLostError("lost")]}
    job.run("next", Key("next"))
    assert job.state("job:free") == KeyState(KeyStatus.COMPLETED, '"late"')
    job.run("next", Key("after"))
    state = job.state("job:lost")
    assert state is not None
    assert state.status is not KeyStatus.COMPLETED


def circular() -> list[Any]:
    """Return a list that contains itself."""
    nested: list[Any] = []
    nested.append(nested)
    return nested


def deep() -> list[Any]:
    """Return a list that is nested too deeply for the JSON encoder."""
    nested: list[Any] = []
    for _ in range(200_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize("make", [object, lambda: {1, 2}, lambda: float("nan"), lambda: {b"x": 1}, circular, deep])
def test_non_json_result_completes_key_without_result(make: Callable[[], Any]) -> None:
    """C5: the call raises InternalError; the key is completed, because the effect has happened."""
    job = Job()
    with pytest.raises(InternalError, match="return JSON values only"):
        job.run(make())
    assert job.state() == KeyState(KeyStatus.COMPLETED)
    assert job.run() == Outcome(None, replayed=True)
    assert job.runs == 1


def test_rejected_result_completes_key_without_result() -> None:
    """For example, a result that is too large for the store."""
    job = Job()
    job.store.failing = {"store_result": [BadRequestError("the result is too large")]}
    with pytest.raises(InternalError, match="the result is too large"):
        job.run()
    assert job.state() == KeyState(KeyStatus.COMPLETED)


@pytest.mark.parametrize("again", [[], [InternalError("another bug")], [LeaseLostError("taken")]])
def test_internal_error_after_work_is_raised(again: list[Exception]) -> None:
    """It is a bug in any fail mode; the key is completed without a result if possible."""
    job = Job(FailMode.OPEN)
    job.store.failing = {"store_result": [InternalError("a bug"), *again]}
    with pytest.raises(InternalError, match="a bug"):
        job.run()
    assert job.store.calls == ["check", "store_result", "store_result"]
    assert job.state() == (KeyState(KeyStatus.IN_PROGRESS) if again else KeyState(KeyStatus.COMPLETED))


@pytest.mark.parametrize("store_error", [RetryableError(DOWN), InternalError("a bug")])
def test_error_of_work_takes_precedence_over_store_error(
    store_error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: if the key cannot be released after a failure, the store error is only logged."""
    job = Job()
    job.store.failing = {"store_failure": [store_error] * 3}
    with pytest.raises(ValueError, match="error of the work"):
        job.run(ValueError("error of the work"))
    (line,) = logged(caplog, "ERROR")
    assert "retry must wait until claim expires" in line["message"]
    job.time.advance(LEASE)
    assert not job.run().replayed


def test_key_is_released_after_short_outage() -> None:
    """C5: releasing the key is retried."""
    job = Job()
    job.store.failing = {"store_failure": [RetryableError(DOWN)]}
    with pytest.raises(ValueError, match="no"):
        job.run(ValueError("no"))
    assert not job.run().replayed


def test_key_too_long_with_job_name_is_rejected() -> None:
    """The error is raised before anything is claimed or run."""
    job = Job(name="j" * 100)
    assert job.run(key=Key("k" * 155)).value == "done"
    with pytest.raises(BadRequestError, match="at most 155 characters"):
        job.run(key=Key("k" * 156))
    assert job.runs == 1
    assert job.store.calls == ["check", "store_result"]


def test_store_gets_message_id_and_job_name() -> None:
    """The job name is stored as the message type."""
    job = Job()
    keys: list[Key] = []
    inner = job.store.inner.store_result

    def record_key(claim: Claim, result: str | None, *times: timedelta) -> None:
        keys.append(claim.key)
        inner(claim, result, *times)

    job.store.inner.store_result = record_key  # type: ignore[method-assign, assignment]
    job.run(key=Key("order:1", 7, "m_1", "a type"))
    assert keys == [Key("job:order:1", 7, "m_1", "job")]


def test_stored_result_that_is_not_json_is_internal_error() -> None:
    """Another program has written under the keys of this job."""
    job = Job()
    claim = job.store.inner.check(Key("job:order:1"), LEASE)
    assert isinstance(claim, Claim)
    job.store.inner.store_result(claim, "not JSON", HOUR)
    with pytest.raises(InternalError, match="cannot be read by the serializer"):
        job.run()


def test_failing_metrics_do_not_fail_work(caplog: pytest.LogCaptureFixture) -> None:
    """C11: an error in the metrics loses no claim, result or message."""

    class FailingMetrics:
        def record_check(self, *_: object) -> None:
            raise OSError("metrics are down")

        record_unguarded_run = record_check

        def flush(self) -> None:
            raise OSError("metrics are down")

    job = Job(FailMode.OPEN, metrics=FailingMetrics())
    assert job.run().value == "done"
    job.store.failing = {"check": [RetryableError(DOWN)] * 2}
    assert job.run().value == "done"
    job.execution.flush()
    assert [line["message"] for line in logged(caplog, "ERROR")] == ["could not write idempotency metrics"] * 4


@pytest.mark.usefixtures("debug")
def test_key_is_logged_only_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """004: a duplicate is logged at DEBUG with key and type; other levels contain only a fingerprint."""
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
    job.store.failing = {"check": [RetryableError(DOWN)] * 2}
    with pytest.raises(RetryableError):
        job.run(key=Key("order:4"))
    lines = logged(caplog, "INFO", "WARNING", "ERROR")
    assert [line.get("key") for line in lines[:2]] == [key_fingerprint("job:order:2"), key_fingerprint("job:order:3")]
    assert len(lines) == 3
    assert "order:" not in str(lines)


@pytest.mark.parametrize("fail_mode", [FailMode.OPEN, FailMode.CLOSED])
def test_call_waits_for_a_free_connection(fail_mode: FailMode) -> None:
    """C23: before the work and after it; the work is guarded."""
    job = Job(fail_mode)
    job.store.failing = {"check": [BusyError("busy")] * 5, "store_result": [BusyError("busy")] * 5}
    assert job.run() == Outcome("done")
    assert job.metrics.unguarded_runs == []
    assert job.run("second") == Outcome("done", replayed=True)


@pytest.mark.parametrize("fail_mode", [FailMode.OPEN, FailMode.CLOSED])
@pytest.mark.parametrize("before", [[], [RetryableError(DOWN)]], ids=["busy", "lost"])
def test_shortage_of_connections_never_runs_the_work(
    fail_mode: FailMode, before: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """C23: after a limited wait the caller gets the error. A key that a lost check may have claimed is released."""
    job = Job(fail_mode)
    job.store.failing = {"check": before + [BusyError("busy")] * 1_000}
    started = job.time.now
    with pytest.raises(BusyError):
        job.run()
    assert job.runs == 0
    assert 3 < job.time.now - started <= 5
    assert job.metrics.unguarded_runs == []
    (line,) = logged(caplog, "WARNING", "ERROR")
    assert line["message"] == "no connection for idempotency check, not processing"
    job.store.failing.clear()
    assert job.run() == Outcome("done")
    assert job.store.calls.count("store_failure") == len(before)


def test_result_is_kept_if_no_connection_is_free() -> None:
    """C23: the work is done, so its value is returned, and the next call writes the result."""
    job = Job()
    job.store.failing = {"store_result": [BusyError("busy")] * 1_000}
    assert job.run() == Outcome("done")
    job.store.failing.clear()
    assert job.run("second") == Outcome("done", replayed=True)


INTERRUPTIONS = [SystemExit(1), KeyboardInterrupt(), TimeoutError("the time limit of the user")]


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
@pytest.mark.parametrize("method", ["store_result", "store_failure", "check"])
def test_interruption_of_a_store_call_loses_nothing(method: str, error: Any) -> None:
    """C24: the outcome is stored by another call, and then the caller gets the interruption; the key is not blocked."""
    job = Job()
    job.store.failing = {method: [error]}
    with pytest.raises(type(error)) as raised:
        job.run(ValueError("no") if method == "store_failure" else "first")
    assert raised.value is error
    again = job.run("second")
    assert again == (Outcome("first", replayed=True) if method == "store_result" else Outcome("second"))


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
def test_interruption_of_a_wait_ends_the_wait_and_not_the_record(error: Any) -> None:
    """C24: while the store is unavailable."""
    job = Job()
    job.store.failing = {"store_result": [RetryableError(DOWN)]}
    settings = ExecutionSettings("job", HOUR, FailMode.OPEN)
    job.execution = Execution(job.store, settings, sleep=lambda _: _raise(error))
    with pytest.raises(type(error)):
        job.run("first")
    assert job.run("second") == Outcome("first", replayed=True)


def _raise(error: BaseException) -> None:
    raise error


def test_second_interruption_keeps_the_result_for_the_next_call() -> None:
    """C24: the record is not tried for ever."""
    job = Job()
    interruptions: list[Any] = [KeyboardInterrupt(), SystemExit(1)]
    job.store.failing = {"store_result": interruptions}
    with pytest.raises(SystemExit):
        job.run("first")
    assert job.store.calls.count("store_result") == 2
    assert job.run("second") == Outcome("first", replayed=True)


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=repr)
def test_interruption_while_the_result_is_serialized(error: Any) -> None:
    """C24: it is serialized again."""
    errors = [error]

    class Serializer(JsonSerializer):
        def dump(self, value: object) -> str:
            if errors:
                raise errors.pop()
            return super().dump(value)

    job = Job(serializer=Serializer())
    with pytest.raises(type(error)):
        job.run("first")
    assert job.run("second") == Outcome("first", replayed=True)


@pytest.mark.parametrize("error", [StopIteration("no more"), GeneratorExit("closed"), StopAsyncIteration()], ids=repr)
def test_error_that_ends_generators_comes_back_as_it_is(error: Any) -> None:
    """C24: the engine is a generator, but the caller gets the error of the work, and the key is free."""
    job = Job()
    with pytest.raises(type(error)) as raised:
        job.run(error)
    assert raised.value is error
    state = job.state()
    assert state is not None
    assert (state.error or "").startswith(type(error).__name__)
    assert job.run("second") == Outcome("second")


def test_generator_exit_of_a_coroutine_comes_back_as_it_is() -> None:
    """C24, C22: and a coroutine that is closed itself awaits nothing more."""
    store = AsyncMemoryStore()
    waiting = asyncio.Event()

    @idempotent(store, key=str, name="job", metrics=NoMetrics())
    async def job(order: str) -> str:
        if order == "exits":
            raise GeneratorExit
        await waiting.wait()
        return order

    async def main() -> None:
        with pytest.raises(GeneratorExit):
            await job("exits")
        state = await store.get_result(Key("job:exits"))
        assert state is not None
        assert state.status is KeyStatus.FAILED

    asyncio.run(main())
    coroutine: Any = job("closed")
    with suppress(RuntimeError):  # there is no event loop to wait in
        coroutine.send(None)
    coroutine.close()
