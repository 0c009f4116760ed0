"""The runtime of relay_outbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.jetstream import Broker, BrokerSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.outbox.connections import Connections
from grantwire.outbox.relay import Relay
from grantwire.outbox.wakeup import Wakeup
from grantwire.settings import flag, group, load, setting
from grantwire.workers.leases import LeaseSettings, worker_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Self

    from grantwire.workers.budget import Budget


# What it writes down repeats itself, so no commit waits for the disk (ADR 0022). And a claim that was planned on an
# empty table must not read all of it for as long as the connection lives.
_SESSION = {"synchronous_commit": "off", "enable_seqscan": "off"}


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What relay_outbox reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    broker: BrokerSettings = group(BrokerSettings)
    topology: TopologySettings = group(TopologySettings)
    leases: LeaseSettings = group(LeaseSettings, prefix="ENTITLEMENT_OUTBOX_")
    wakeup: bool = setting("ENTITLEMENT_OUTBOX_WAKEUP", flag, default="true")

    def problems(self) -> Iterator[str]:
        """JetStream must still know an event when a relay that died, or a timeout, makes it be published again."""
        if self.topology.events.duplicate_window <= self.leases.lease + 2 * self.leases.backoff_max:
            yield (
                "ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"
                " ENTITLEMENT_OUTBOX_LEASE + 2 x ENTITLEMENT_OUTBOX_BACKOFF_MAX"
            )

    @property
    def listening(self) -> DatabaseSettings | None:
        """Where to wait for a wake-up; None if that is switched off."""
        return self.database if self.wakeup else None


@dataclass(frozen=True, slots=True)
class RelayRuntime:
    """What relay_outbox works with; the connections belong to the runner's event loop."""

    relay: Relay
    broker: Broker
    database: Database
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    @classmethod
    def build(cls, environ: Mapping[str, str], clock: Callable[[], datetime | None] = lambda: None) -> Self:
        """Read the settings; connections are made when they are first used. The database's clock is `clock`'s None."""
        settings = load(RelaySettings, environ)
        database, second = (
            Database(settings.database, application_name="grantwire-relay", session=_SESSION) for _ in range(2)
        )
        broker = Broker(settings.broker, name="grantwire-relay")
        relay = Relay(
            Connections(database, second),
            broker,
            Wakeup(settings.listening),
            topology=settings.topology,
            leases=settings.leases,
            worker=worker_name(environ),
            clock=clock,
        )
        return cls(relay, broker, database)

    def work(self, budget: Budget) -> dict[str, int]:
        """Publish what comes until the budget ends."""
        return self.runner.run(self.relay.work(budget))

    def close(self) -> None:
        """Let the connections go."""
        self.runner.run(self.broker.close())
        self.runner.close()
        self.database.close()
