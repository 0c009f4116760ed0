"""The base class of the runtimes of workers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.workers import loop
from grantwire.workers.heartbeats import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.workers.budget import Budget
    from grantwire.workers.heartbeats import Heartbeats
    from grantwire.workers.loop import Worker


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """A worker, its heartbeats, its event loop, and the functions that close its connections.

    The event loop lives longer than one invocation, because a NATS connection belongs to the loop that opened it.
    """

    worker: Worker
    close_functions: tuple[Callable[[], Any], ...] = ()
    heartbeats: Heartbeats | None = None
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    # Called before each step: for work of another kind that fits the schedule of this worker.
    before_step: Callable[[], object] = lambda: None

    def run(self, budget: Budget) -> dict[str, Any]:
        """Run the worker until the budget ends and return its result. Every run leaves a heartbeat (T1)."""
        started = time.monotonic()

        def describe(error: Exception | None, result: dict[str, Any], *, is_over: bool) -> Run:
            return Run(time.monotonic() - started, {**result, **self.worker.facts}, error, is_over=is_over)

        def record(error: Exception | None, result: dict[str, Any], *, is_over: bool) -> None:
            if self.heartbeats is not None:
                self.heartbeats.record(describe(error, result, is_over=is_over))

        def report() -> None:
            if self.heartbeats is not None:
                self.heartbeats.report(describe(None, dict(self.worker.counts), is_over=False), self.worker.facts)

        self.worker.facts = {}
        try:
            result = self.runner.run(
                loop.run(
                    self.worker,
                    budget,
                    on_change=lambda error: record(error, dict(self.worker.counts), is_over=False),
                    on_report=report,
                    before_step=self.before_step,
                )
            )
        except Exception as error:
            record(error, dict(self.worker.counts), is_over=True)
            raise
        record(self.worker.error, result, is_over=True)
        return result

    def close(self) -> None:
        """Close the connections and the event loop."""
        for close in self.close_functions:
            awaitable = close()
            if awaitable is not None:
                self.runner.run(awaitable)
        self.runner.close()
