"""Record the starts, notices and ends of entitlements when their time comes."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.wiring.workers.expire_entitlements import ExpiryRuntime

handler = WorkerHandler("expire_entitlements", ExpiryRuntime.build)
