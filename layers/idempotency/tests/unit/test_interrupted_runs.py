"""C23, C24: runs that find no free connection, or that are interrupted."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    FailMode,
    JsonSerializer,
    Key,
    KeyStatus,
    MemoryStore,
    NoMetrics,
    Outcome,
    idempotent,
)
from grantwire_idempotency._internal.jobs.execution import Execution
from grantwire_idempotency._internal.jobs.settings import ExecutionSettings
from grantwire_idempotency.errors import (
    BusyError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import logged
from layers.idempotency.tests.unit.job_doubles import DOWN, HOUR, Job


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


class Limit(BaseException):
    """A time limit."""


# The modules that run between the work and the store.
RECORDING = "/jobs/recording.py"
RELEASE = ("_release", "_call_store")
ENGINE = ("/jobs/execution.py", RECORDING, "/foundation/steps.py")
HIGHEST_LINE = 1_000


class InterruptedJob:
    """A job that is interrupted in one line of the engine after its work, counted from 1."""

    def __init__(self, line: int, *, fails: bool) -> None:
        self.runs = 0
        self.file = self.function = ""
        self._left = line
        self._is_done = False
        self._fails = fails
        self.call = idempotent(MemoryStore(), key=str, name="job", metrics=NoMetrics())(self._work)

    def _work(self, _order: str) -> None:
        self.runs += 1
        self._is_done = True
        if self._fails:
            raise ValueError("no")

    def call_interrupted(self) -> None:
        """Call the job. Afterwards, `file` and `function` are those of the line, or empty if there are fewer lines."""
        previous = sys.gettrace()
        sys.settrace(self._trace)
        try:
            with suppress(ValueError, Limit):
                self.call("o1")
        finally:
            sys.settrace(previous)
        self._fails = False

    def _trace(self, frame: Any, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(ENGINE):
            return None
        if event == "line" and self._is_done:
            self._left -= 1
            if self._left == 0:
                self.file, self.function = frame.f_code.co_filename, frame.f_code.co_name
                raise Limit
        return self._trace


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_interruption_in_any_line_of_the_engine_loses_nothing(fails: bool) -> None:
    """C24: also between the work and the store. The key is free, or completed as soon as its result is known."""
    for line in range(1, HIGHEST_LINE):
        job = InterruptedJob(line, fails=fails)
        copy_context().run(job.call_interrupted)  # the interruption can leave the claim of the run in its context
        if not job.file:
            break
        if fails and job.function not in RELEASE:
            continue  # a few lines until the release begins
        job.call("o1")  # no RequestInProgressError
        if job.file.endswith(RECORDING):
            assert job.runs == 1 + fails, line
    assert 10 < line < HIGHEST_LINE
