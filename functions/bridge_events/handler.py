"""Bring events from JetStream into the inbox, each once in effect."""

from typing import Any

from grantwire.budget import Budget
from grantwire.entrypoints.schedule import WorkerHandler
from grantwire.runtime.bridge import BridgeRuntime


def work(rt: BridgeRuntime, budget: Budget) -> dict[str, Any]:
    """Batch after batch until the budget ends."""
    return dict(rt.run(budget))


handler = WorkerHandler("bridge_events", BridgeRuntime.build, work)
