"""Record messages that JetStream stopped delivering as dead letters, with a copy of each message."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.wiring.workers.record_advisories import RecorderRuntime

handler = WorkerHandler("record_advisories", RecorderRuntime.build)
