"""How each kind of command is executed, one batch at a time (T1).

The changes of a batch, its row in `operator_actions` and the position of the next batch commit together. So a command
that was interrupted continues where it stopped, and does nothing twice.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from grantwire.dead_letters.redrive import NOT_OPEN, Execution, build_action
from grantwire.operations import command_store
from grantwire.operations.command_store import BatchOutcome, ClaimedCommand
from grantwire.operations.commands import NewCommand, parse_rate
from grantwire.operator_actions import Operator, OperatorAction
from grantwire.read_model.from_record import (
    MAX_PASSES,
    RecordRebuildReport,
    compare,
    repair_pass,
    repair_summaries,
)
from grantwire.workers.leases import ensure_claim_held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.dead_letter import BatchReport
    from grantwire.dead_letters.redrive import DeadLetters

# The position of a command that has nothing left to do.
FINISHED = "finished"


class Fence:
    """The claim of a worker on a command. Each method raises LeaseLostError, which rolls back the batch, without it."""

    def __init__(self, token: str, command: ClaimedCommand) -> None:
        self._token = token
        self._command_id = command.command_id

    def begin(self, tx: Connection) -> int:
        """Return the number of the next batch."""
        number = command_store.begin_batch(tx, self._token, self._command_id)
        ensure_claim_held(int(number is not None), 1, "begin_batch")
        return number or 0

    def end(self, tx: Connection, outcome: BatchOutcome) -> None:
        """Keep the outcome of the batch."""
        ensure_claim_held(command_store.end_batch(tx, self._token, self._command_id, outcome), 1, "end_batch")


class Executor(Protocol):
    """Executes the commands of one kind."""

    def execute_batch(self, command: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Execute the next batch and return its outcome, which is committed; the last one has the position FINISHED."""


class DeadLetterExecutor:
    """Redrives or discards dead letters."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters

    def execute_batch(self, command: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Change the next page of selected dead letters, at most `rate` a second."""
        rate = parse_rate(command.arguments)
        parsed = NewCommand(command.kind, command.actor, command.reason, command.arguments).to_dead_letter_command()
        limit = min(
            self._dead_letters.batch_size, parsed.limit - command.selected, rate or self._dead_letters.batch_size
        )
        checkpoint = _FencedCheckpoint(fence, rate, limit)
        action = build_action(parsed, command.source, command.command_id)
        until = None if parsed.ids is not None else command.created_at
        execution = Execution(parsed, action, command.created_at, checkpoint, until)
        after = None if command.position is None else UUID(command.position)
        page = self._dead_letters.list_page(execution, after, limit) if limit else []
        if page:
            self._dead_letters.execute_page(execution, page)
        if len(page) == limit and limit < parsed.limit - command.selected:
            return checkpoint.outcome
        last = page[-1].dead_letter_id if page else after
        more = len(page) == limit and bool(self._dead_letters.list_page(execution, last, 1))
        return self._finish(command, parsed.ids, checkpoint.outcome, fence, more=more)

    def _finish(
        self, command: ClaimedCommand, ids: tuple[UUID, ...] | None, last: BatchOutcome, fence: Fence, *, more: bool
    ) -> BatchOutcome:
        selected = command.selected + last.selected
        skipped = {NOT_OPEN: len(ids) - selected} if ids is not None and len(ids) > selected else {}
        outcome = BatchOutcome(FINISHED, skipped=skipped, result={"more": more})
        with self._dead_letters.database.session() as connection, connection.transaction():
            fence.end(connection, outcome)
        return outcome


class _FencedCheckpoint:
    """Keeps where a command on dead letters stands in its row."""

    def __init__(self, fence: Fence, rate: int | None, limit: int) -> None:
        self._fence = fence
        self._delay = timedelta(seconds=limit / rate) if rate else None
        self.outcome = BatchOutcome("")

    def begin_batch(self, tx: Connection) -> int:
        """Return the number of the batch, for its action."""
        return self._fence.begin(tx)

    def end_batch(self, tx: Connection, batch: BatchReport) -> None:
        """Store the outcome of the batch."""
        skipped = {reason: len(ids) for reason, ids in batch.skipped.items()}
        outcome = BatchOutcome(str(batch.last), batch.selected, len(batch.done), skipped, delay=self._delay)
        self._fence.end(tx, outcome)
        self.outcome = outcome


class RebuildExecutor:
    """Rebuilds the read model from the system of record; a batch is one pass over all rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute_batch(self, command: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Repair all rows that differ; after the last pass, also the counts of users."""
        passes = int(command.position or 0)
        report = _read_report(command.result)
        operator = Operator(command.actor, command.reason, command.source)
        action = OperatorAction(operator, "rebuild", "read_model", {"source": "record"}, action_id=command.command_id)
        with self._database.session() as connection, connection.transaction():
            before = report.repaired + report.removed
            repair_pass(connection, report, action, fence.begin(connection))
            changed = report.repaired + report.removed - before
            outcome = BatchOutcome(str(passes + 1), changed, changed, result=report.as_dict())
            fence.end(connection, outcome)
        if not report.complete and passes + 1 < MAX_PASSES:
            return outcome
        repair_summaries(self._database, report)
        with self._database.session() as connection, connection.transaction():
            outcome = BatchOutcome(FINISHED, result=report.as_dict())
            fence.end(connection, outcome)
        return outcome


class VerifyExecutor:
    """Compares the read model with the system of record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute_batch(self, _command: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Count the differences with one statement."""
        outcome = BatchOutcome(FINISHED, result=compare(self._database).as_dict())
        with self._database.session() as connection, connection.transaction():
            fence.end(connection, outcome)
        return outcome


def _read_report(result: Mapping[str, Any] | None) -> RecordRebuildReport:
    """Return the report of the passes before."""
    report = RecordRebuildReport(dry_run=False, complete=False)
    if result is not None:
        report.differences = Counter(result["found"])
        report.repaired, report.removed = result["repaired"], result["removed"]
    return report
