"""Record the starts, notices and ends of entitlements when their time comes."""

from grantwire.wiring.workers.expire_entitlements import ExpiryRuntime
from grantwire.wiring.workers.handler import WorkerHandler

handler = WorkerHandler("expire_entitlements", ExpiryRuntime.build)
