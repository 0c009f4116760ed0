"""Record events of the stream in the inbox, as notifications and in the read model, each once in effect."""

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.wiring.workers.bridge_events import BridgeRuntime

handler = WorkerHandler("bridge_events", BridgeRuntime.build)
