"""The runtime of redrive_dead_letters, and of the command that does the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.redrive import DeadLetters
from grantwire.dead_letters.republish import Republisher
from grantwire.jetstream import Broker, BrokerSettings
from grantwire.settings import group, integer, load, setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


@dataclass(frozen=True, slots=True)
class RedriveSettings:
    """What redrive_dead_letters reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    broker: BrokerSettings = group(BrokerSettings)
    retention_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")


@dataclass(frozen=True, slots=True)
class RedriveRuntime:
    """What redrive_dead_letters works with."""

    dead_letters: DeadLetters
    runner: asyncio.Runner

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; connections are made when they are first used, to NATS only if something goes there."""
        settings = load(RedriveSettings, environ)
        name = "grantwire-redrive"
        runner = asyncio.Runner()
        dead_letters = DeadLetters(
            Database(settings.database, application_name=name),
            Republisher(Broker(settings.broker, name=name), runner),
            timedelta(days=settings.retention_days),
        )
        return cls(dead_letters, runner)

    def close(self) -> None:
        """Let go of everything."""
        self.dead_letters.republisher.close()
        self.dead_letters.database.close()
        self.runner.close()
