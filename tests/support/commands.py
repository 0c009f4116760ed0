"""Executes commands of operators in this thread, batch by batch, so that a test sees their errors."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire.database import Database, DatabaseSettings, Jsonb
from grantwire.dead_letters.republish import Republisher
from grantwire.identifiers import uuid7
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.publisher import Publisher
from grantwire.jetstream.settings import NatsSettings
from grantwire.operations.command_store import FINISHED, ClaimedCommand, Fence
from grantwire.operations.commands import DISCARD, REBUILD, REDRIVE, VERIFY, OperatorCommand
from grantwire.operations.rebuild import RebuildExecutor, VerifyExecutor
from grantwire.operations.redrive import DeadLetterExecutor, DryRuns
from grantwire.read_model.from_stream import EventStream
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from typing import Self

    from grantwire.operations.worker import Executor

SOURCE = "a test"
OPERATOR = {"actor": "ann", "reason": "repaired"}
RETENTION = timedelta(days=30)

_INSERT = """
INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source, created_at)
VALUES (%(id)s, %(kind)s, %(arguments)s, %(actor)s, %(reason)s, %(source)s, coalesce(%(now)s::timestamptz, now()))
RETURNING created_at
"""
_READ = """
SELECT selected, done, skipped, result FROM operator_commands WHERE command_id = %(id)s
"""
_CLAIM = """
UPDATE operator_commands
   SET status = 'RUNNING', started_at = now(), locked_by = 'test', locked_at = now(), lease_until = 'infinity'
 WHERE command_id = %(id)s
"""


class Operations:
    """What run_operator_commands has: its connections, and the executor of each kind of command."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        batch_size: int = 500,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(load(DatabaseSettings, environ), application_name="grantwire-commands")
        self.nats = NatsConnection(load(NatsSettings, environ))
        self.republisher = Republisher(self.nats, Publisher(self.nats), self.runner)
        self.stream = EventStream(self.nats, environ.get("ENTITLEMENT_NATS_STREAM", "ENTITLEMENTS"), self.runner)
        dead_letters = DeadLetterExecutor(
            self.database, self.republisher, RETENTION, batch_size=batch_size, clock=clock
        )
        self.executors: dict[str, Executor] = {
            REDRIVE: dead_letters,
            DISCARD: dead_letters,
            REBUILD: RebuildExecutor(self.database, self.stream),
            VERIFY: VerifyExecutor(self.database),
        }

    def __enter__(self) -> Self:
        """Do nothing: connections are opened on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections and the event loop."""
        self.republisher.close()
        self.runner.close()
        self.database.close()

    def execute(
        self,
        command_kind: str,
        /,
        *,
        now: datetime | None = None,
        on_batch: Callable[[dict[str, Any]], object] = lambda _: None,
        **body: Any,
    ) -> dict[str, Any]:
        """Store a command, and execute it until it ends; return its progress, its result, and the changed ids.

        A dry run is executed as the route does. `on_batch` gets the progress after each batch.
        """
        command = OperatorCommand.parse(command_kind, OPERATOR | body, SOURCE)
        if body.get("dry_run"):
            report = DryRuns(self.database, RETENTION).execute(command, now)
            return report | {"done": report["would_change"]}
        claimed = self._store(command, now)
        while True:
            outcome = self.executors[command_kind].execute_batch(claimed, Fence("test", claimed.command_id))
            progress = self._read(claimed)
            if outcome.position == FINISHED:
                return progress
            on_batch(progress)
            result = claimed.result if outcome.result is None else outcome.result
            claimed = claimed._replace(position=outcome.position, selected=progress["selected"], result=result)

    def _store(self, command: OperatorCommand, now: datetime | None) -> ClaimedCommand:
        """Store a command and claim it, as its worker does."""
        command_id, operator = uuid7(), command.operator
        parameters = {
            "id": command_id,
            "kind": command.kind,
            "arguments": Jsonb(dict(command.arguments)),
            "actor": operator.actor,
            "reason": operator.reason,
            "source": operator.source,
            "now": now,
        }
        (created_at,) = self.database.fetch_row(_INSERT, parameters)
        with self.database.session() as tx:
            tx.execute(_CLAIM, {"id": command_id})
        return ClaimedCommand(command_id, command, created_at, 0, None, 0, None)

    def _read(self, claimed: ClaimedCommand) -> dict[str, Any]:
        selected, done, skipped, result = self.database.fetch_row(_READ, {"id": claimed.command_id})
        return {"selected": selected, "done": done, "skipped": skipped, **(result or {})}
