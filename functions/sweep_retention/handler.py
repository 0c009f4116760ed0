"""Delete what is past its time, keep the months of the audit, and tell about what must never be."""

from typing import Any

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.sweep import SweepRuntime
from grantwire.workers.budget import Budget


def work(rt: SweepRuntime, budget: Budget) -> dict[str, Any]:
    """Batch by batch until all is done or the budget ends."""
    return rt.sweep.run(budget)


handler = WorkerHandler("sweep_retention", SweepRuntime.build, work)
