"""Record events of the stream in the inbox, as notifications and in the read model, each once in effect."""

from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.handler import WorkerHandler

handler = WorkerHandler("bridge_events", BridgeRuntime.build)
