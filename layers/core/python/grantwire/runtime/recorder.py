"""The runtime of record_advisories."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.recorder import Recorder
from grantwire.jetstream import Broker, BrokerSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.settings import group, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.workers.budget import Budget


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What record_advisories reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    broker: BrokerSettings = group(BrokerSettings)
    topology: TopologySettings = group(TopologySettings)


@dataclass(frozen=True, slots=True)
class RecorderRuntime:
    """What record_advisories works with; the connection to NATS belongs to the runner's loop."""

    recorder: Recorder
    runner: asyncio.Runner

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; both connections are made when work begins."""
        settings = load(RecorderSettings, environ)
        name = "grantwire-recorder"
        database = Database(settings.database, application_name=name)
        return cls(Recorder(database, Broker(settings.broker, name=name), settings.topology), asyncio.Runner())

    def work(self, budget: Budget) -> dict[str, Any]:
        """Record until the budget ends."""
        return self.runner.run(self.recorder.work(budget))

    def close(self) -> None:
        """Let go of everything."""
        self.runner.run(self.recorder.close())
        self.runner.close()
