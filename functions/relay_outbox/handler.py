"""Publish outbox events to JetStream, in order for each aggregate."""

from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.wiring.workers.relay_outbox import RelayRuntime

handler = WorkerHandler("relay_outbox", RelayRuntime.build)
