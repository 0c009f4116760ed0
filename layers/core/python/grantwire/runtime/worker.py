"""The base class of the runtimes of workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.workers import loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.workers.budget import Budget
    from grantwire.workers.loop import Worker


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """A worker, its event loop, and the functions that close its connections.

    The event loop lives longer than one invocation, because a NATS connection belongs to the loop that opened it.
    """

    worker: Worker
    close_functions: tuple[Callable[[], Any], ...] = ()
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def run(self, budget: Budget) -> dict[str, Any]:
        """Run the worker until the budget ends and return its result."""
        return self.runner.run(loop.run(self.worker, budget))

    def close(self) -> None:
        """Close the connections and the event loop."""
        for close in self.close_functions:
            awaitable = close()
            if awaitable is not None:
                self.runner.run(awaitable)
        self.runner.close()
