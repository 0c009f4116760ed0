"""Runs a worker that has no runtime: one that a test made with parts of its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from grantwire.workers import loop
from grantwire.workers.budget import Budget

if TYPE_CHECKING:
    from grantwire.workers.loop import Worker


def run_worker(worker: Worker, budget: Budget | None = None) -> dict[str, Any]:
    """Run it until the budget ends; by default until there is nothing to do."""
    return asyncio.run(loop.run(worker, budget or Budget(time.monotonic() + 20, until_idle=True)))
