"""Send the notifications that are due."""

from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.handler import WorkerHandler

handler = WorkerHandler("deliver_notifications", DeliveryRuntime.build)
