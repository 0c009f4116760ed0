"""O7, N5, N6: the loop of every worker, and the one error policy in it."""

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
    from collections.abc import Mapping, Sequence


class Clock:
    """Time that passes only when a worker sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        """Pass that much time."""
        self.slept.append(seconds)
        self.now += max(seconds, 0.001)

    def budget(self, seconds: float, *, until_idle: bool = False) -> Budget:
        """A budget by this clock."""
        return Budget(self.now + seconds, until_idle, clock=lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time."""
    return Clock(monkeypatch)


class Scripted(Worker):
    """Does what the script says: true, false, or an error; after its end there is nothing to do."""

    name = "scripted"
    counters: ClassVar[Mapping[str, str | None]] = {"done": "ThingsDone", "leases_lost": None}

    def __init__(self, *script: bool | Exception) -> None:
        super().__init__()
        self.script = list(script)
        self.hooks: list[str] = []

    async def begin(self) -> None:
        """Note it."""
        self.hooks.append("begin")

    async def step(self, budget: Budget) -> bool:  # noqa: ARG002 - a script needs no time
        """Do what comes next."""
        what = self.script.pop(0) if self.script else False
        if isinstance(what, Exception):
            raise what
        self.counts["done"] += what
        return what

    def hand_over(self) -> None:
        """Note it."""
        self.hooks.append("hand over")

    async def end(self) -> None:
        """Note it."""
        self.hooks.append("end")


def _run(worker: Worker, budget: Budget) -> dict[str, Any]:
    return asyncio.run(loop.run(worker, budget))


def _messages(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_it_steps_while_there_is_work_and_then_waits(clock: Clock) -> None:
    """O7: it works through its budget, and hands over in its last moments."""
    worker = Scripted(True, True)
    assert _run(worker, clock.budget(10)) == {"done": 2, "leases_lost": 0}
    assert clock.slept[0] == pytest.approx(10 - HANDOVER_SECONDS)
    assert worker.hooks[:2] == ["begin", "hand over"]
    assert worker.hooks[-1] == "end"
    assert clock.now == pytest.approx(10, abs=0.01)


def test_until_idle_it_ends_with_the_work(clock: Clock) -> None:
    """O7: `sam local invoke` does not wait for a minute."""
    assert _run(Scripted(True), clock.budget(10, until_idle=True))["done"] == 1
    assert clock.slept == []


def test_a_worker_with_a_fixed_amount_to_do_ends_with_it(clock: Clock) -> None:
    """R4: a sweep is done when it is done."""

    class Finite(Scripted):
        stops_when_idle = True

    assert _run(Finite(True, True), clock.budget(10))["done"] == 2
    assert clock.slept == []


@pytest.mark.parametrize("error", [RetryableError("away"), SystemFaultError("no table")])
def test_a_dependency_that_is_away_is_waited_for(
    error: Exception, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """N6: with growing delays, up to a second; then the work goes on, and the invocation is no failure."""
    assert _run(Scripted(*[error] * 8, True), clock.budget(20))["done"] == 1
    delays = clock.slept[:8]
    assert all(later > 0.9 * earlier for earlier, later in pairwise(delays[:5]))
    assert delays[0] <= 0.05
    assert 0.5 <= delays[7] <= 1
    lines = [line for line in _messages(capsys) if "message" in line]
    assert {line["message"] for line in lines} == {"dependency unavailable, retrying"}
    assert {line["worker"] for line in lines} == {"scripted"}
    assert {line["level"] for line in lines} == {"ERROR" if isinstance(error, SystemFaultError) else "WARNING"}


def test_an_outage_is_measured_for_its_alarm(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """N6: how long a worker could not work; nothing is written where it always could."""
    _run(Scripted(True), clock.budget(5))
    assert not [line for line in _messages(capsys) if "DependencyUnavailable" in line]
    _run(Scripted(*[RetryableError("away")] * 100), clock.budget(5))
    (line,) = [line for line in _messages(capsys) if "DependencyUnavailable" in line]
    assert sum(line["DependencyUnavailable"]) == pytest.approx(5, abs=0.2)
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]


@pytest.mark.parametrize("error", [RetryableError("away"), SystemFaultError("no table"), InternalError("bug")])
def test_until_idle_nothing_is_waited_for(error: Exception, clock: Clock) -> None:
    """O7: a person who invoked it by hand is told at once."""
    worker = Scripted(error)
    with pytest.raises(type(error)):
        _run(worker, clock.budget(10, until_idle=True))
    assert clock.slept == []
    assert worker.hooks == ["begin", "end"]


def test_a_lost_lease_ends_the_step_and_not_the_worker(clock: Clock) -> None:
    """O2: another worker has the rows; there are others."""
    worker = Scripted(LeaseLostError("gone"), True)
    assert _run(worker, clock.budget(1)) == {"done": 1, "leases_lost": 1}


@pytest.mark.parametrize("error", [InternalError("bug"), ZeroDivisionError("bug")])
def test_a_step_that_fails_does_not_end_the_invocation(
    error: Exception, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """N5: it is logged with its traceback and tried again; once it works, nothing is wrong."""
    assert _run(Scripted(error, True), clock.budget(5))["done"] == 1
    (line,) = [line for line in _messages(capsys) if line.get("message") == "worker step failed, retrying"]
    assert type(error).__name__ in line["exception"]


@pytest.mark.parametrize("error", [InternalError("bug"), ZeroDivisionError("bug")])
def test_a_step_that_keeps_failing_fails_the_invocation_at_its_end(error: Exception, clock: Clock) -> None:
    """The function's error metric must count it; what was held is given back first."""
    worker = Scripted(*[error] * 100)
    with pytest.raises(type(error), match="bug"):
        _run(worker, clock.budget(5))
    assert clock.now == pytest.approx(5, abs=0.01)
    assert worker.hooks[-1] == "end"


def test_counts_become_metrics(clock: Clock) -> None:
    """Only those that have a metric, and only where there is something to count."""
    _run(Scripted(True, LeaseLostError("gone")), clock.budget(1))
    assert metrics.metric_set["ThingsDone"]["Value"] == [1.0]
    _assert_names(["ThingsDone"])


def _assert_names(names: Sequence[str]) -> None:
    assert list(metrics.metric_set) == names
