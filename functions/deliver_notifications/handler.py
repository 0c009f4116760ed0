"""Send the notifications that are due."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime

handler = WorkerHandler("deliver_notifications", DeliveryRuntime.build)
