"""The runtime of rebuild_read_model and of its command line tool."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.events.decoding import decode_payload
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.operator_actions import Operator
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
    """The settings of rebuild_read_model."""

    database: DatabaseSettings = group(DatabaseSettings)
    nats: NatsSettings = group(NatsSettings)
    stream: str = setting("ENTITLEMENT_NATS_STREAM", text)


@dataclass(frozen=True, slots=True)
class RebuildRuntime:
    """The objects that rebuild_read_model needs."""

    runner: asyncio.Runner
    database: Database
    nats: NatsConnection
    stream_rebuild: StreamRebuild

    @classmethod
    def build(cls, environ: Mapping[str, str]) -> Self:
        """Build the runtime from environment variables; connections are opened on first use, to NATS only if needed."""
        settings = load(RebuildSettings, environ)
        name = "grantwire-rebuild"
        database = Database(settings.database, application_name=name)
        nats = NatsConnection(settings.nats, name=name)
        return cls(asyncio.Runner(), database, nats, StreamRebuild(database, nats, settings.stream, decode_payload))

    def execute(
        self, command: RebuildCommand, source: str, on_batch: Callable[[StreamRebuildReport], None] = lambda _: None
    ) -> RecordRebuildReport | StreamRebuildReport:
        """Execute the command. A rebuild from the stream calls `on_batch` after each batch.

        `source` says where the command came from, and is recorded with it.
        """
        operator = None if command.dry_run else Operator(command.actor, command.reason, source)
        if command.source == "record":
            return compare(self.database) if operator is None else rebuild(self.database, operator)
        budget = Budget(time.monotonic() + command.budget.total_seconds())
        return self.runner.run(
            self.stream_rebuild.run(budget, operator, first=command.from_sequence, on_batch=on_batch)
        )

    def close(self) -> None:
        """Close the connections and the event loop."""
        self.runner.run(self.nats.close())
        self.runner.close()
        self.database.close()
