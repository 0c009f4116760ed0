"""The runtime of bridge_events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.notifications.bridge import Bridge
from grantwire.settings import group, load
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """The settings of bridge_events."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    topology: TopologySettings = group(TopologySettings)


class BridgeRuntime(WorkerRuntime):
    """The objects that bridge_events needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; connections are opened on first use."""
        settings = load(BridgeSettings, environ)
        database = Database(settings.database, application_name="grantwire-bridge")
        nats = NatsConnection(settings.nats, name="grantwire-bridge")
        consumer = PullConsumer(nats, settings.topology.consumer.stream, settings.topology.consumer.durable)
        bridge = Bridge(database, nats, Publisher(nats), consumer, settings.topology)
        return cls(bridge, (nats.close, database.close), Heartbeats(settings.database, bridge.name))
