"""Runs a worker that a test built from its own parts, without a runtime."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grantwire.workers import loop
from tests.support.waiting import until_idle

if TYPE_CHECKING:
    from grantwire.workers.budget import Budget
    from grantwire.workers.loop import Worker


def run_worker(worker: Worker, budget: Budget | None = None) -> dict[str, Any]:
    """Run the worker until its budget ends, by default until it is idle, and return its result."""
    return asyncio.run(loop.run(worker, budget or until_idle()))
