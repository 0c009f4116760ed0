"""Publish outbox events to JetStream, in order for each aggregate."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.relay import RelayRuntime

handler = WorkerHandler("relay_outbox", RelayRuntime.build)
