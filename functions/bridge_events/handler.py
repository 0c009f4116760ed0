"""Record events of the stream in the inbox, as notifications and in the read model, each once in effect."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.runtime.bridge import BridgeRuntime

handler = WorkerHandler("bridge_events", BridgeRuntime.build)
