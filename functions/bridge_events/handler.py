"""Bring events from JetStream into the inbox, each once in effect."""

from typing import Any

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.bridge import BridgeRuntime
from grantwire.workers.budget import Budget


def work(rt: BridgeRuntime, budget: Budget) -> dict[str, Any]:
    """Batch after batch until the budget ends."""
    return dict(rt.run(budget))


handler = WorkerHandler("bridge_events", BridgeRuntime.build, work)
