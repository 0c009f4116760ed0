"""C5, C6: what follows the work of a run, with a store that fails meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    Claim,
    FailMode,
    Key,
    KeyState,
    KeyStatus,
    Outcome,
    current_claim,
)
from grantwire_idempotency.errors import (
    BadRequestError,
    InternalError,
    LeaseLostError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import logged
from layers.idempotency.tests.unit.job_doubles import DOWN, HOUR, LEASE, Job

if TYPE_CHECKING:
    from collections.abc import Callable


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
