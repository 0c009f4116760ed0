"""The runtime of rebuild_read_model, and of the command that does the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.notifications.events import decode_payload
from grantwire.read_model.from_record import RecordRebuildReport, compare, rebuild
from grantwire.read_model.from_stream import StreamRebuild, StreamRebuildReport
from grantwire.settings import group, load, setting, text
from grantwire.workers.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from grantwire.read_model.commands import RebuildCommand


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """What rebuild_read_model reads from its environment."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    stream: str = setting("ENTITLEMENT_NATS_STREAM", text)


@dataclass(frozen=True, slots=True)
class RebuildRuntime:
    """What rebuild_read_model works with."""

    runner: asyncio.Runner
    database: Database
    nats: NatsConnection
    replay: StreamRebuild

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; connections are made when they are first used, to NATS only for a replay."""
        settings = load(RebuildSettings, environ)
        name = "grantwire-rebuild"
        database = Database(settings.database, application_name=name)
        nats = NatsConnection(settings.nats, name=name)
        return cls(asyncio.Runner(), database, nats, StreamRebuild(database, nats, settings.stream, decode_payload))

    def execute(
        self, order: RebuildCommand, on_batch: Callable[[StreamRebuildReport], None] = lambda _: None
    ) -> RecordRebuildReport | StreamRebuildReport:
        """Do what the order says; a replay reports after each batch."""
        if order.source == "record":
            return compare(self.database) if order.dry_run else rebuild(self.database)
        budget = Budget(time.monotonic() + order.budget.total_seconds())
        return self.runner.run(
            self.replay.run(budget, first=order.from_sequence, dry_run=order.dry_run, on_batch=on_batch)
        )

    def close(self) -> None:
        """Let go of everything."""
        self.runner.run(self.nats.close())
        self.runner.close()
        self.database.close()
