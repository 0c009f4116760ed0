"""Record messages that JetStream stopped delivering as dead letters, with a copy of each message."""

from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.wiring.workers.record_advisories import RecorderRuntime

handler = WorkerHandler("record_advisories", RecorderRuntime.build)
