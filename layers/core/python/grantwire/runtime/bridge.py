"""The runtime of bridge_events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.jetstream import Broker, BrokerSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.notifications.bridge import Bridge
from grantwire.settings import group, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.workers.budget import Budget


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """What bridge_events reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    broker: BrokerSettings = group(BrokerSettings)
    topology: TopologySettings = group(TopologySettings)


@dataclass(frozen=True, slots=True)
class BridgeRuntime:
    """What bridge_events works with; the loop outlives an invocation, because the connection belongs to it."""

    runner: asyncio.Runner
    database: Database
    broker: Broker
    bridge: Bridge

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; connections are made when they are first used."""
        settings = load(BridgeSettings, environ)
        database = Database(settings.database, application_name="grantwire-bridge")
        broker = Broker(settings.broker, name="grantwire-bridge")
        return cls(asyncio.Runner(), database, broker, Bridge(database, broker, settings.topology))

    def run(self, budget: Budget) -> dict[str, int]:
        """Work until the budget ends."""
        return self.runner.run(self.bridge.run(budget))

    def close(self) -> None:
        """Give both connections and the loop back."""
        self.runner.run(self.broker.close())
        self.runner.close()
        self.database.close()
