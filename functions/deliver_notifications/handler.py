"""Send the notifications that are due."""

from typing import Any

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.delivery import DeliveryRuntime
from grantwire.workers.budget import Budget


def work(rt: DeliveryRuntime, budget: Budget) -> dict[str, Any]:
    """Claim after claim until the budget ends."""
    return dict(rt.delivery.run(budget))


handler = WorkerHandler("deliver_notifications", DeliveryRuntime.build, work)
