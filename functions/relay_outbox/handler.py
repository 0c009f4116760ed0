"""Publish the events of the outbox to JetStream, in order, until the minute is over."""

from typing import Any

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.relay import RelayRuntime
from grantwire.workers.budget import Budget


def work(rt: RelayRuntime, budget: Budget) -> dict[str, Any]:
    """Claim, publish, finalise."""
    return rt.work(budget)


handler = WorkerHandler("relay_outbox", RelayRuntime.build, work)
