"""The loop of every worker, which calls `step` until the budget ends, and the error policy of all workers.

- RetryableError and SystemFaultError: a dependency is unavailable. The loop retries with increasing delays; no row or
  message is marked as failed meanwhile (N6).
- LeaseLostError: the step ends, the worker continues with the next step.
- Any other error, including a bug: it is logged and the step is retried. If the last step of an invocation failed this
  way, `run` raises its error at the end, so that the error metric of the function counts it and its alarm fires.

With `until_idle` nothing is retried, unless a schedule started the worker (`Budget.retries`): the first error is
raised, except LeaseLostError.
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
from grantwire_idempotency import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from grantwire.workers.budget import Budget

    OnChange = Callable[[Exception | None], None]
    OnReport = Callable[[], None]
    BeforeStep = Callable[[], object]

# The end of an invocation, in which the worker hands over to the next one. It polls and does not wait for a wake-up, so
# that there is no gap between the two.
HANDOVER_SECONDS = 0.15
_HANDOVER_POLL_SECONDS = 0.005

_RECONNECT_BACKOFF = Backoff(
    base=timedelta(milliseconds=50), cap=timedelta(seconds=1), floor=timedelta(0), jitter_min=0.5, jitter_max=1.0
)


def reconnect_delays() -> Iterator[float]:
    """Yield increasing delays, in seconds, for an unavailable dependency: at first 25 to 50 ms, at most 1 s."""
    attempt = 0
    while True:
        attempt += 1
        yield _RECONNECT_BACKOFF.delay(attempt, random.random).total_seconds()


class Worker:
    """The base class of workers. A subclass implements `step`, one unit of work; the other methods are optional hooks.

    `counters` maps each counter in the result to its metric, or to None if it has no metric. A worker belongs to one
    event loop.
    """

    name: ClassVar[str] = "worker"
    counters: ClassVar[Mapping[str, str | None]] = {}
    # For a worker with a fixed amount of work: `run` returns when it is done, even before the budget ends.
    stops_when_idle: ClassVar[bool] = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # What only this worker knows, for its heartbeat: for example the consumer lag. Reported when it changes.
        self.facts: dict[str, Any] = {}
        self.error: Exception | None = None

    async def begin(self) -> None:
        """Prepare for an invocation, for example check connections after the execution environment was frozen."""

    async def step(self, budget: Budget) -> bool:
        """Do one unit of work; return false if there was nothing to do."""
        raise NotImplementedError

    async def wait(self, seconds: float) -> None:
        """Wait until there may be work, at most `seconds`."""
        await asyncio.sleep(seconds)

    def hand_over(self) -> None:
        """Hand over to the next invocation; called one or more times in the last HANDOVER_SECONDS of the budget."""

    async def end(self) -> None:
        """Release everything that is held, also after an error. Must not raise if a dependency is unavailable."""

    def result(self) -> dict[str, Any]:
        """Return the result of the invocation, which is also logged."""
        return dict(self.counts)


def _ignore_change(_error: Exception | None) -> None:
    """Do nothing: the caller does not follow outages."""


def _ignore_report() -> None:
    """Do nothing: the caller does not follow the run."""


def _do_nothing() -> None:
    """Do nothing: the caller has no other work for this schedule."""


async def run(
    worker: Worker,
    budget: Budget,
    on_change: OnChange = _ignore_change,
    on_report: OnReport = _ignore_report,
    before_step: BeforeStep = _do_nothing,
) -> dict[str, Any]:
    """Call `step` until the budget ends, or with `until_idle` until there is no work; return the worker's result.

    `on_change` is called in a thread, with the error of the first step that fails, and with None when a step succeeds
    again. `on_report` is called in a thread, after the first step that succeeds and after each one that changed
    `worker.facts`. `before_step` is called before each step, and its errors count as those of the step. `worker.error`
    has the error that the last step ended with, if any.

    Raises RetryableError or SystemFaultError only if the budget does not retry, and a dependency is unavailable.
    """
    worker.counts = Counter(dict.fromkeys(worker.counters, 0))
    worker.error = None
    outage = _Outage(worker.name, on_change)
    try:
        await worker.begin()
        await _work(worker, budget, outage, on_report, before_step)
    finally:
        try:
            await worker.end()
        finally:
            _write_metrics(worker, outage)
    worker.error = outage.error
    if outage.error is not None and not isinstance(outage.error, RetryableError | SystemFaultError):
        raise outage.error
    return worker.result()


async def _work(worker: Worker, budget: Budget, outage: _Outage, on_report: OnReport, before_step: BeforeStep) -> None:
    reported: dict[str, Any] | None = None
    idle_since: float | None = None
    while not budget.is_over():
        handing_over = budget.remaining() <= HANDOVER_SECONDS
        if handing_over:
            worker.hand_over()
        try:
            before_step()
            busy = await worker.step(budget)
        except LeaseLostError:
            worker.counts["leases_lost"] += 1
            continue
        except Exception as error:
            if not budget.retries:
                raise
            await outage.wait_after(error, budget)
            continue
        await outage.end()
        if worker.facts != reported:
            reported = dict(worker.facts)
            await asyncio.to_thread(on_report)
        if busy:
            idle_since = None
            continue
        idle_since = budget.clock() if idle_since is None else idle_since
        if worker.stops_when_idle or (budget.until_idle and budget.clock() - idle_since >= budget.linger):
            return
        if handing_over:
            await asyncio.sleep(min(_HANDOVER_POLL_SECONDS, budget.remaining()))
        else:
            seconds = budget.remaining() - HANDOVER_SECONDS
            await worker.wait(min(seconds, budget.linger) if budget.until_idle else seconds)


class _Outage:
    """The consecutive failed steps of a worker: the last error, and the total time that was spent waiting."""

    def __init__(self, worker: str, on_change: OnChange) -> None:
        self._worker = worker
        self._on_change = on_change
        self._delays = reconnect_delays()
        self.error: Exception | None = None
        self.seconds = 0.0

    async def wait_after(self, error: Exception, budget: Budget) -> None:
        """Log the error of a step and wait, longer after each consecutive error."""
        delay = min(next(self._delays), budget.remaining())
        fields: dict[str, Any] = {"worker": self._worker, "delay_s": round(delay, 3), "reason": str(error)}
        if isinstance(error, RetryableError):
            logger.warning("dependency unavailable, retrying", **fields)
        elif isinstance(error, SystemFaultError):
            logger.error("dependency unavailable, retrying", **fields)
        else:
            logger.error("worker step failed, retrying", exc_info=error, **fields)
        is_first, self.error = self.error is None, error
        started = time.monotonic()
        if is_first:
            await asyncio.to_thread(self._on_change, error)
        await asyncio.sleep(delay)
        self.seconds += time.monotonic() - started

    async def end(self) -> None:
        """Reset the error and the delays after a step that succeeded."""
        if self.error is not None:
            self.error = None
            self._delays = reconnect_delays()
            await asyncio.to_thread(self._on_change, None)


def _write_metrics(worker: Worker, outage: _Outage) -> None:
    for counter, metric in worker.counters.items():
        if metric is not None and worker.counts[counter]:
            metrics.add_metric(metric, MetricUnit.Count, worker.counts[counter])
    if outage.seconds:
        write_metric("DependencyUnavailable", MetricUnit.Seconds, round(outage.seconds, 3))
