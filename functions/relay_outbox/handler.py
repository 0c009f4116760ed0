"""Publish the events of the outbox to JetStream, in order, until the minute is over."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.relay import RelayRuntime

handler = WorkerHandler("relay_outbox", RelayRuntime.build)
