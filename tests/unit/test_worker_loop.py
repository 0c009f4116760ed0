"""O7, N5, N6: the worker loop and its error policy."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from grantwire.errors import InternalError, LeaseLostError, RetryableError, SystemFaultError
from grantwire.observability import metrics
from grantwire.workers import loop
from grantwire.workers.budget import Budget
from grantwire.workers.loop import HANDOVER_SECONDS, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping


class Clock:
    """A clock that advances only when a worker sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self.slept.append(seconds)
        self.now += max(seconds, 0.001)

    def budget(self, seconds: float, *, until_idle: bool = False) -> Budget:
        """Return a budget that uses this clock."""
        return Budget(self.now + seconds, until_idle, clock=lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that replaces `asyncio.sleep` and `time.monotonic`."""
    return Clock(monkeypatch)


class ScriptedWorker(Worker):
    """A worker whose steps return or raise the items of a script; after its end there is no work."""

    name = "scripted"
    counters: ClassVar[Mapping[str, str | None]] = {"done": "ThingsDone", "leases_lost": None}

    def __init__(self, *script: bool | Exception) -> None:
        super().__init__()
        self.script = list(script)
        self.hooks: list[str] = []

    async def begin(self) -> None:
        """Record the call."""
        self.hooks.append("begin")

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - part of the interface
        """Return or raise the next item of the script."""
        outcome = self.script.pop(0) if self.script else False
        if isinstance(outcome, Exception):
            raise outcome
        self.counts["done"] += outcome
        return outcome

    def hand_over(self) -> None:
        """Record the call."""
        self.hooks.append("hand over")

    async def end(self) -> None:
        """Record the call."""
        self.hooks.append("end")


def _run(worker: Worker, budget: Budget) -> dict[str, Any]:
    return asyncio.run(loop.run(worker, budget))


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_worker_steps_while_there_is_work_then_waits_until_handover(clock: Clock) -> None:
    """O7: it uses its whole budget, and hands over at the end."""
    worker = ScriptedWorker(True, True)
    assert _run(worker, clock.budget(10)) == {"done": 2, "leases_lost": 0}
    assert clock.slept[0] == pytest.approx(10 - HANDOVER_SECONDS)
    assert worker.hooks[:2] == ["begin", "hand over"]
    assert worker.hooks[-1] == "end"
    assert clock.now == pytest.approx(10, abs=0.01)


def test_other_work_of_the_schedule_is_done_before_each_step(clock: Clock) -> None:
    """T8: its errors are those of the step."""
    worker = ScriptedWorker(True, True)
    calls = iter([None, RetryableError("away"), None, None])

    def before_step() -> None:
        worker.hooks.append("before step")
        if error := next(calls):
            raise error

    budget = Budget(60.0, until_idle=True, clock=lambda: clock.now, retries_when_idle=True)
    assert asyncio.run(loop.run(worker, budget, before_step=before_step))["done"] == 2
    assert worker.hooks == ["begin", *["before step"] * 4, "end"]


def test_until_idle_ends_when_there_is_no_work(clock: Clock) -> None:
    """O7: `sam local invoke` does not have to wait for a minute."""
    assert _run(ScriptedWorker(True), clock.budget(10, until_idle=True))["done"] == 1
    assert clock.slept == []


def test_lingering_worker_ends_after_it_was_idle_for_so_long(clock: Clock) -> None:
    """X1: work that comes in the meantime starts the wait again."""
    worker = ScriptedWorker(True, False, True, False)
    budget = Budget(60.0, until_idle=True, clock=lambda: clock.now, linger=3.0, retries_when_idle=True)
    assert _run(worker, budget)["done"] == 2
    assert clock.slept == [3.0, 3.0]


def test_scheduled_worker_retries_until_its_budget_ends(clock: Clock) -> None:
    """N6, X1: an outage is no error of the function, whose alarm would fire; after it the worker ends when idle."""
    budget = Budget(60.0, until_idle=True, clock=lambda: clock.now, retries_when_idle=True)
    assert _run(ScriptedWorker(*[RetryableError("unavailable")] * 3, True), budget)["done"] == 1
    assert clock.now < 2
    worker = ScriptedWorker(*[RetryableError("unavailable")] * 1000)
    assert _run(worker, Budget(60.0, until_idle=True, clock=lambda: clock.now, retries_when_idle=True))["done"] == 0
    assert clock.now == pytest.approx(60, abs=0.1)
    assert isinstance(worker.error, RetryableError)


def test_worker_that_stops_when_idle_ends_before_its_budget(clock: Clock) -> None:
    """R4: a sweep ends when it has nothing left to delete."""

    class FiniteWorker(ScriptedWorker):
        stops_when_idle = True

    assert _run(FiniteWorker(True, True), clock.budget(10))["done"] == 2
    assert clock.slept == []


@pytest.mark.parametrize("error", [RetryableError("unavailable"), SystemFaultError("no table")])
def test_unavailable_dependency_is_retried_with_increasing_delays(
    error: Exception, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """N6: delays are at most a second; then the work continues, and the invocation succeeds."""
    assert _run(ScriptedWorker(*[error] * 8, True), clock.budget(20))["done"] == 1
    delays = clock.slept[:8]
    assert all(later > 0.9 * earlier for earlier, later in pairwise(delays[:5]))
    assert delays[0] <= 0.05
    assert 0.5 <= delays[7] <= 1
    lines = [line for line in _lines(capsys) if "message" in line]
    assert {line["message"] for line in lines} == {"dependency unavailable, retrying"}
    assert {line["worker"] for line in lines} == {"scripted"}
    assert {line["level"] for line in lines} == {"ERROR" if isinstance(error, SystemFaultError) else "WARNING"}


def test_time_of_an_outage_is_a_metric(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """N6: an alarm uses DependencyUnavailable; without an outage it is not written."""
    _run(ScriptedWorker(True), clock.budget(5))
    assert not [line for line in _lines(capsys) if "DependencyUnavailable" in line]
    _run(ScriptedWorker(*[RetryableError("unavailable")] * 100), clock.budget(5))
    (line,) = [line for line in _lines(capsys) if "DependencyUnavailable" in line]
    assert sum(line["DependencyUnavailable"]) == pytest.approx(5, abs=0.2)
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]


@pytest.mark.parametrize("error", [RetryableError("unavailable"), SystemFaultError("no table"), InternalError("bug")])
def test_until_idle_raises_the_first_error(error: Exception, clock: Clock) -> None:
    """O7: an operator who invokes the worker sees the error without a delay."""
    worker = ScriptedWorker(error)
    with pytest.raises(type(error)):
        _run(worker, clock.budget(10, until_idle=True))
    assert clock.slept == []
    assert worker.hooks == ["begin", "end"]


def test_lost_lease_ends_the_step_but_not_the_worker(clock: Clock) -> None:
    """O2: another worker has the rows; this worker continues with other rows."""
    worker = ScriptedWorker(LeaseLostError("lost"), True)
    assert _run(worker, clock.budget(1)) == {"done": 1, "leases_lost": 1}


@pytest.mark.parametrize("error", [InternalError("bug"), ZeroDivisionError("bug")])
def test_failed_step_is_logged_and_retried(error: Exception, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """N5: the line has the traceback; if the retry succeeds, the invocation succeeds."""
    assert _run(ScriptedWorker(error, True), clock.budget(5))["done"] == 1
    (line,) = [line for line in _lines(capsys) if line.get("message") == "worker step failed, retrying"]
    assert type(error).__name__ in line["exception"]


@pytest.mark.parametrize("error", [InternalError("bug"), ZeroDivisionError("bug")])
def test_step_that_keeps_failing_fails_the_invocation_at_its_end(error: Exception, clock: Clock) -> None:
    """The error metric of the function counts it; the worker releases its rows first."""
    worker = ScriptedWorker(*[error] * 100)
    with pytest.raises(type(error), match="bug"):
        _run(worker, clock.budget(5))
    assert clock.now == pytest.approx(5, abs=0.01)
    assert worker.hooks[-1] == "end"


def test_counters_become_metrics(clock: Clock) -> None:
    """Counters without a metric and counters that are 0 are not written."""
    _run(ScriptedWorker(True, LeaseLostError("lost")), clock.budget(1))
    assert metrics.metric_set["ThingsDone"]["Value"] == [1.0]
    assert list(metrics.metric_set) == ["ThingsDone"]
