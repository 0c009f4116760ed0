"""The runtime of record_advisories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.recorder import Recorder
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.pull_consumer import PullConsumer
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import group, load
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """The settings of record_advisories."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    topology: TopologySettings = group(TopologySettings)


class RecorderRuntime(WorkerRuntime):
    """The objects that record_advisories needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; connections are opened on first use."""
        settings = load(RecorderSettings, environ)
        database = Database(settings.database, application_name="grantwire-recorder")
        nats = NatsConnection(settings.nats, name="grantwire-recorder")
        advisories = settings.topology.advisories.consumers.values()
        consumers = [PullConsumer(nats, advisory.stream, advisory.durable) for advisory in advisories]
        recorder = Recorder(database, nats, consumers, settings.topology)
        heartbeats = Heartbeats(settings.database, recorder.name)
        return cls(recorder, (nats.close, database.close), heartbeats)
