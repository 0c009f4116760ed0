"""The runtime of run_operator_commands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.republish import Republisher
from grantwire.entitlements.settings import TimeSettings
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.operations.commands import DISCARD, REBUILD, REDRIVE, VERIFY
from grantwire.operations.rebuild import RebuildExecutor, VerifyExecutor
from grantwire.operations.redrive import BATCH_SIZE, DeadLetterExecutor
from grantwire.operations.samples import Samples
from grantwire.operations.worker import CommandWorker
from grantwire.read_model.from_stream import EventStream
from grantwire.settings import group, integer, load, setting, text
from grantwire.wiring.workers.runtime import WorkerRuntime
from grantwire.workers.heartbeats import Heartbeats
from grantwire.workers.leases import LeaseSettings, worker_name
from grantwire.workers.schedule import ScheduleSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class OperatorCommandsSettings:
    """The settings of run_operator_commands."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    stream: str = setting("ENTITLEMENT_NATS_STREAM", text)
    leases: LeaseSettings = group(LeaseSettings, prefix="OPERATOR_COMMAND_", defaults={"POLL_INTERVAL": "1s"})
    times: TimeSettings = group(TimeSettings)
    schedule: ScheduleSettings = group(ScheduleSettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")


class OperatorCommandsRuntime(WorkerRuntime):
    """The objects that run_operator_commands needs."""

    __slots__ = ()

    @classmethod
    def build(cls, environ: Mapping[str, str], *, batch_size: int = BATCH_SIZE) -> Self:
        """Build the runtime from environment variables; connections are opened on first use, to NATS only if needed.

        A command on dead letters changes `batch_size` of them in one transaction.
        """
        settings = load(OperatorCommandsSettings, environ)
        name = "grantwire-commands"
        database, lease_database = (Database(settings.database, application_name=name) for _ in range(2))
        nats = NatsConnection(settings.nats, name=name)
        # Batches run in a thread, so the connection to NATS has an event loop of its own.
        runner = asyncio.Runner()
        republisher = Republisher(nats, Publisher(nats), runner)
        retention = timedelta(days=settings.retention_days)
        dead_letters = DeadLetterExecutor(database, republisher, retention, batch_size=batch_size)
        worker = CommandWorker(
            database,
            lease_database,
            {
                REDRIVE: dead_letters,
                DISCARD: dead_letters,
                REBUILD: RebuildExecutor(database, EventStream(nats, settings.stream, runner)),
                VERIFY: VerifyExecutor(database),
            },
            settings.leases,
            worker_name(environ),
        )
        close = (republisher.close, runner.close, worker.close)
        samples = Samples(lease_database, settings.times, settings.schedule)
        return cls(worker, close, Heartbeats(settings.database, worker.name), before_step=samples.take_if_due)
