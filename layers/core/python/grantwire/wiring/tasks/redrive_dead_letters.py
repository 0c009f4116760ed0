"""The runtime of redrive_dead_letters and of its command line tool."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.redrive import DeadLetters
from grantwire.dead_letters.republish import Republisher
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import group, integer, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class RedriveSettings:
    """The settings of redrive_dead_letters."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")


@dataclass(frozen=True, slots=True)
class RedriveRuntime:
    """The objects that redrive_dead_letters needs."""

    dead_letters: DeadLetters
    republisher: Republisher
    runner: asyncio.Runner

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; connections are opened on first use, to NATS only if needed."""
        settings = load(RedriveSettings, environ)
        name = "grantwire-redrive"
        runner = asyncio.Runner()
        nats = NatsConnection(settings.nats, name=name)
        republisher = Republisher(nats, Publisher(nats), runner)
        database = Database(settings.database, application_name=name)
        retention = timedelta(days=settings.retention_days)
        return cls(DeadLetters(database, republisher, retention), republisher, runner)

    def close(self) -> None:
        """Close the connections and the event loop."""
        self.republisher.close()
        self.dead_letters.database.close()
        self.runner.close()
