"""The runtime of relay_outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.redriven import RedriveConfirmation
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.jetstream.topology import TopologySettings
from grantwire.outbox.confirmation.settings import ConfirmationSettings
from grantwire.outbox.confirmation.turn import Confirmation
from grantwire.outbox.connections import Connections
from grantwire.outbox.relay import Relay
from grantwire.outbox.wakeup import Wakeup
from grantwire.settings import flag, group, load, setting
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats
from grantwire.workers.leases import LeaseSettings, worker_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Self


# synchronous_commit: a commit does not wait for the disk, because the work of a lost commit can be repeated (ADR 0022).
# enable_seqscan: PostgreSQL caches the plan of the claim. A plan made for an empty table would keep scanning the whole
# table.
SESSION = {"synchronous_commit": "off", "enable_seqscan": "off"}


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of relay_outbox."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    topology: TopologySettings = group(TopologySettings)
    leases: LeaseSettings = group(LeaseSettings, prefix="ENTITLEMENT_OUTBOX_")
    confirmation: ConfirmationSettings = group(ConfirmationSettings)
    wakeup: bool = setting("ENTITLEMENT_OUTBOX_WAKEUP", flag, default="true")

    def problems(self) -> Iterator[str]:
        """Yield a problem if JetStream or the confirmation could miss an event.

        An event is published again after a crash, when its lease has expired, and after a timeout. The confirmation
        does not see an event whose transaction ends after the grace.
        """
        if self.confirmation.grace <= self.database.statement_timeout:
            yield "ENTITLEMENT_OUTBOX_CONFIRM_GRACE must exceed DATABASE_STATEMENT_TIMEOUT"
        if self.topology.events.duplicate_window <= self.leases.lease + 2 * self.leases.backoff_max:
            yield (
                "ENTITLEMENT_NATS_DUPLICATE_WINDOW must exceed"
                " ENTITLEMENT_OUTBOX_LEASE + 2 x ENTITLEMENT_OUTBOX_BACKOFF_MAX"
            )

    @property
    def listener_settings(self) -> DatabaseSettings | None:
        """The database to listen to for wake-ups; None if they are disabled."""
        return self.database if self.wakeup else None


class RelayRuntime(WorkerRuntime):
    """The objects that relay_outbox needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str], clock: Callable[[], datetime | None] = lambda: None) -> Self:
        """Build the runtime from environment variables; connections are opened on first use.

        `clock` returns the time for the outbox; None means the database clock.
        """
        settings = load(RelaySettings, environ)
        database, second = (
            Database(settings.database, application_name="grantwire-relay", session=SESSION) for _ in range(2)
        )
        nats = NatsConnection(settings.nats, name="grantwire-relay")
        connections, publisher, worker = Connections(database, second), Publisher(nats), worker_name(environ)
        redrives = RedriveConfirmation(connections, nats, publisher, settings.topology, settings.confirmation.grace)
        confirmation = Confirmation(
            connections,
            nats,
            settings.topology,
            settings.confirmation,
            worker=worker,
            more=(redrives.check,),
            clock=clock,
        )
        relay = Relay(
            connections,
            nats,
            publisher,
            Wakeup(settings.listener_settings),
            confirmation,
            topology=settings.topology,
            leases=settings.leases,
            worker=worker,
            clock=clock,
        )
        return cls(relay, (nats.close, database.close), Heartbeats(settings.database, relay.name))
