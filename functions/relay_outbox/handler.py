"""Publish the events of the outbox to JetStream, in order, until the minute is over."""

from typing import Any

from grantwire.budget import Budget
from grantwire.entrypoints.schedule import WorkerHandler
from grantwire.runtime.relay import RelayRuntime


def work(rt: RelayRuntime, budget: Budget) -> dict[str, Any]:
    """Claim, publish, finalise."""
    return rt.work(budget)


handler = WorkerHandler("relay_outbox", RelayRuntime.build, work)
