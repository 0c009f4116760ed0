"""What the runtimes of all workers have in common."""

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
    """A worker, the event loop that it and its connections belong to, and how to close them.

    The loop outlives an invocation, because a connection to NATS belongs to its loop.
    """

    worker: Worker
    closes: tuple[Callable[[], Any], ...] = ()
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def run(self, budget: Budget) -> dict[str, Any]:
        """Work until the budget ends."""
        return self.runner.run(loop.run(self.worker, budget))

    def close(self) -> None:
        """Close the connections and the event loop."""
        for close in self.closes:
            closing = close()
            if closing is not None:
                self.runner.run(closing)
        self.runner.close()
