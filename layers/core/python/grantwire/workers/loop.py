"""The loop of every worker: call its step until the budget ends.

The error policy is here and nowhere else. A dependency that is out of reach, and a fault of the system, are waited for
with growing delays; nothing is given up meanwhile (N6). A lost lease ends the step, not the worker. Any other error of
a step, a bug included, is logged and the step is tried again; if the last step of an invocation failed that way, its
error is raised at the end, so that the function's error metric and its alarm see it. With `until_idle` nothing is
waited for: the first error is raised.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from grantwire.errors import LeaseLostError, RetryableError, SystemFaultError
from grantwire.observability import MetricUnit, logger, metrics, write_metric
from grantwire_idempotency.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grantwire.workers.budget import Budget

# In its last moments a worker hands over to its successor and no longer sleeps, so that no second is unserved.
HANDOVER_SECONDS = 0.15
_POLL_SECONDS = 0.005

_RECONNECT = Backoff(
    base=timedelta(milliseconds=50), cap=timedelta(seconds=1), floor=timedelta(0), jitter_min=0.5, jitter_max=1.0
)


def reconnect_delays() -> Iterator[float]:
    """Seconds to wait for a dependency that is out of reach: short enough for a hiccup at first, then a second."""
    attempt = 0
    while True:
        attempt += 1
        yield _RECONNECT.delay(attempt, random.random).total_seconds()


class Worker:
    """One worker: `step` does one unit of work and says whether there was any.

    `counters` names what it counts, with the metric that each becomes at the end of an invocation, if any. A worker
    belongs to one event loop. The other methods are hooks that most workers do not need.
    """

    name: ClassVar[str] = "worker"
    counters: ClassVar[Mapping[str, str | None]] = {}
    # A worker that has a fixed amount to do ends when it is done, also before its budget ends.
    stops_when_idle: ClassVar[bool] = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def begin(self) -> None:
        """Prepare for an invocation, for example check connections of a sandbox that was frozen."""

    async def step(self, budget: Budget) -> bool:
        """Do one unit of work; false if there was nothing to do."""
        raise NotImplementedError

    async def wait(self, seconds: float) -> None:
        """Wait until there may be work, at most that long."""
        await asyncio.sleep(seconds)

    def hand_over(self) -> None:
        """Let the successor take over; called while the last moments of an invocation pass, perhaps repeatedly."""

    async def end(self) -> None:
        """Give back what is held, whatever happened; must not raise for a dependency that is out of reach."""

    def result(self) -> dict[str, Any]:
        """What an invocation returns and logs."""
        return dict(self.counts)


async def run(worker: Worker, budget: Budget) -> dict[str, Any]:
    """Work until the budget ends, or with `until_idle` until there is nothing to do; the worker's result.

    Raises RetryableError or SystemFaultError only with `until_idle`, when a dependency is out of reach.
    """
    worker.counts = Counter(dict.fromkeys(worker.counters, 0))
    outage = _Outage(worker.name)
    try:
        await worker.begin()
        await _work(worker, budget, outage)
    finally:
        try:
            await worker.end()
        finally:
            _report(worker, outage)
    if outage.error is not None and not isinstance(outage.error, RetryableError | SystemFaultError):
        raise outage.error
    return worker.result()


async def _work(worker: Worker, budget: Budget, outage: _Outage) -> None:
    while not budget.is_over():
        last_moments = budget.remaining() <= HANDOVER_SECONDS
        if last_moments:
            worker.hand_over()
        try:
            busy = await worker.step(budget)
        except LeaseLostError:
            worker.counts["leases_lost"] += 1
            continue
        except Exception as error:
            if budget.until_idle:
                raise
            await outage.wait(error, budget)
            continue
        outage.over()
        if busy:
            continue
        if budget.until_idle or worker.stops_when_idle:
            return
        if last_moments:
            await asyncio.sleep(min(_POLL_SECONDS, budget.remaining()))
        else:
            await worker.wait(budget.remaining() - HANDOVER_SECONDS)


class _Outage:
    """What keeps a worker from its work, and for how long."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._delays = reconnect_delays()
        self.error: Exception | None = None
        self.seconds = 0.0

    async def wait(self, error: Exception, budget: Budget) -> None:
        """Log an error and wait a little longer than the last time."""
        delay = min(next(self._delays), budget.remaining())
        fields: dict[str, Any] = {"worker": self._worker, "delay_s": round(delay, 3), "reason": str(error)}
        if isinstance(error, RetryableError):
            logger.warning("dependency unavailable, retrying", **fields)
        elif isinstance(error, SystemFaultError):
            logger.error("dependency unavailable, retrying", **fields)
        else:
            logger.error("worker step failed, retrying", exc_info=error, **fields)
        self.error = error
        began = time.monotonic()
        await asyncio.sleep(delay)
        self.seconds += time.monotonic() - began

    def over(self) -> None:
        """A step succeeded."""
        if self.error is not None:
            self.error = None
            self._delays = reconnect_delays()


def _report(worker: Worker, outage: _Outage) -> None:
    for counter, metric in worker.counters.items():
        if metric is not None and worker.counts[counter]:
            metrics.add_metric(metric, MetricUnit.Count, worker.counts[counter])
    if outage.seconds:
        write_metric("DependencyUnavailable", MetricUnit.Seconds, round(outage.seconds, 3))
