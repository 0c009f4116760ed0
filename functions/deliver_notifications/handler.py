"""Send the notifications that are due."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.delivery import DeliveryRuntime

handler = WorkerHandler("deliver_notifications", DeliveryRuntime.build)
