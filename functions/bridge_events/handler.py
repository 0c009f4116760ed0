"""Bring events from JetStream into the inbox, each once in effect."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.bridge import BridgeRuntime

handler = WorkerHandler("bridge_events", BridgeRuntime.build)
