"""C5, C6: one guarded run, with a store that fails before the work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grantwire_idempotency import (
    Claim,
    FailMode,
    Key,
    KeyStatus,
    Outcome,
    key_fingerprint,
)
from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    CircuitOpenError,
    InternalError,
    RequestInProgressError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import logged
from layers.idempotency.tests.unit.job_doubles import DOWN, HOUR, LEASE, Job
from tests.support.concurrency import run_concurrently


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
