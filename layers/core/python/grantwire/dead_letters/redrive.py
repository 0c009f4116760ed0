"""Executes an operator's command on dead letters, batch by batch (Q2, Q3).

Each batch is a transaction of its own, with its row in `operator_actions`. If a batch fails, the earlier ones stay
committed, and repeating the command continues with the rest. A `Checkpoint` can keep where a command stands, so that
another worker continues it after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from grantwire.dead_letters import store
from grantwire.dead_letters.dead_letter import BatchReport, Report
from grantwire.dead_letters.kinds import DISCARD_BY_KIND, REDRIVE_BY_KIND
from grantwire.dead_letters.listing import list_open
from grantwire.dead_letters.refused import Refused, find_refused
from grantwire.errors import InternalError
from grantwire.identifiers import uuid7
from grantwire.observability import logger
from grantwire.operator_actions import Operator, OperatorAction, record_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.commands import DeadLetterCommand
    from grantwire.dead_letters.dead_letter import DeadLetter
    from grantwire.dead_letters.kinds import DeadLetterUpdate
    from grantwire.dead_letters.republish import Republisher

BATCH_SIZE = 500  # dead letters that one transaction changes

NOT_OPEN = "not open: already closed, or unknown id"
_TOO_OLD = "too old: the inbox may no longer know the event, so it could take effect twice; use force to redrive it"
_NOT_AUDITED = "too old: the audit no longer has the event; check that it is genuine, then use force to redrive it"
_NOT_GENUINE = "not genuine: the audit has no such change, so the bridge would terminate the message again; discard it"
_UNPARSABLE = "not an event: the bridge would terminate the message again; discard it"
_NO_COPY = "no copy: the message was no longer in the stream when it was recorded; it can only be discarded"
_CHANGED = "not changed: closed by another command meanwhile, or its event has another notification"

_NOW = "SELECT coalesce(%(now)s::timestamptz, now())"


def _ignore_progress(_report: Report) -> None:
    pass


class Checkpoint(Protocol):
    """Where a command stands. Both methods run in the transactions of a batch, so they commit with its changes."""

    def begin_batch(self, tx: Connection) -> int:
        """Return the number of the batch, which no other batch of the command has."""

    def end_batch(self, tx: Connection, batch: BatchReport) -> None:
        """Keep the outcome of the batch, and its last dead letter, after which the next batch starts."""


class CountingCheckpoint:
    """Numbers the batches of a command that is executed at once."""

    def __init__(self) -> None:
        self._number = -1

    def begin_batch(self, _tx: Connection) -> int:
        """Return the next number, from 0."""
        self._number += 1
        return self._number

    def end_batch(self, tx: Connection, batch: BatchReport) -> None:
        """Keep nothing: the report has the outcome."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A command that is being executed: its action, the time that its filters refer to, and where it stands.

    A command that runs later selects no dead letters that appeared after `until`: its operator did not see them.
    `now` is None in production, which means the time of the database.
    """

    command: DeadLetterCommand
    action: OperatorAction
    started_at: datetime
    checkpoint: Checkpoint = field(default_factory=CountingCheckpoint)
    until: datetime | None = None
    now: datetime | None = None

    def record_action(self, tx: Connection, changed: list[UUID]) -> None:
        """Record one batch, in the transaction that changes its dead letters."""
        record_dead_letters(tx, self.action, self.checkpoint.begin_batch(tx), changed)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of all kinds, for an operator. `inbox_retention` is how long the inbox recognises an event."""

    database: Database
    republisher: Republisher | None
    inbox_retention: timedelta
    batch_size: int = BATCH_SIZE

    def execute(
        self,
        command: DeadLetterCommand,
        source: str,
        *,
        on_batch: Callable[[Report], None] = _ignore_progress,
        now: datetime | None = None,
    ) -> Report:
        """List, redrive or discard the dead letters that the command selects; call `on_batch` after each batch.

        `source` says where the command came from, and is recorded with it.
        Raises RetryableError if PostgreSQL or NATS is unavailable. Batches committed before the error stay committed,
        and repeating the command is harmless.
        """
        report = Report(command)
        started_at: datetime = self.database.fetch_row(_NOW, {"now": now})[0]
        execution = Execution(command, build_action(command, source), started_at, now=now)
        after: UUID | None = None
        while (limit := min(self.batch_size, command.limit - len(report.seen))) > 0:
            page = self.list_page(execution, after, limit)
            if page:
                after = page[-1].dead_letter_id
                report.add(page, None if command.action == "list" else self.execute_page(execution, page))
                on_batch(report)
            if len(page) < limit:
                break
        else:
            report.more = bool(self.list_page(execution, after, 1))
        if command.ids is not None:
            report.skip(NOT_OPEN, set(command.ids) - report.seen)
        if command.action != "list":
            logger.info(
                "dead letter command executed",
                action_id=str(execution.action.action_id),
                actor=command.actor,
                **report.counts(),
            )
        return report

    def list_page(self, execution: Execution, after: UUID | None, limit: int) -> list[DeadLetter]:
        """Return the next selected dead letters after the id `after`, in order of their ids."""
        with self.database.session() as connection:
            command, until = execution.command, execution.until
            return list_open(connection, command, execution.started_at, after, limit, until=until)

    def execute_page(self, execution: Execution, page: list[DeadLetter]) -> BatchReport:
        """Execute the command for these dead letters, which must not be empty, and return the outcome.

        The changes, their row in `operator_actions` and the checkpoint commit together. A redrive to NATS commits
        twice: the numbers before the messages are published, the outcome after it.
        """
        refused = self._find_refused(execution.command, page)
        batch = BatchReport(page[-1].dead_letter_id, len(page))
        ids = self._select_executable(execution, page, refused, batch)
        kind = execution.command.kind
        if not ids:
            with self.database.session() as connection, connection.transaction():
                execution.checkpoint.end_batch(connection, batch)
        elif execution.command.dry_run:
            self._change(execution, ids, lambda _tx, changed, _now: list(changed), batch)
        elif execution.command.action == "discard":
            self._change(execution, ids, DISCARD_BY_KIND[kind], batch)
        elif kind in REDRIVE_BY_KIND:
            self._change(execution, ids, REDRIVE_BY_KIND[kind], batch)
        else:
            self._republish(execution, ids, refused.too_old, batch)
        return batch

    def _find_refused(self, command: DeadLetterCommand, dead_letters: list[DeadLetter]) -> Refused:
        """Return the dead letters that the bridge would not accept; the other kinds do not pass through the stream."""
        if command.kind != "nats" or command.action != "redrive":
            return Refused()
        with self.database.session() as connection:
            return find_refused(connection, dead_letters)

    def _select_executable(
        self, execution: Execution, dead_letters: list[DeadLetter], refused: Refused, batch: BatchReport
    ) -> list[UUID]:
        """Return the ids that the command may change, and report the others as skipped."""
        if execution.command.action == "discard":
            return [dead_letter.dead_letter_id for dead_letter in dead_letters]
        oldest = execution.started_at - self.inbox_retention
        selected = []
        for dead_letter in dead_letters:
            reason = None
            if not dead_letter.has_copy:
                reason = _NO_COPY
            elif dead_letter.dead_letter_id in refused.unparsable:
                reason = _UNPARSABLE
            elif dead_letter.dead_letter_id in refused.not_genuine:
                reason = _NOT_GENUINE
            elif execution.command.force:
                pass
            elif dead_letter.dead_letter_id in refused.too_old:
                reason = _NOT_AUDITED
            elif dead_letter.event_time and dead_letter.event_time < oldest:
                reason = _TOO_OLD
            if reason is None:
                selected.append(dead_letter.dead_letter_id)
            else:
                batch.skip(reason, [dead_letter.dead_letter_id])
        return selected

    def _change(self, execution: Execution, ids: list[UUID], update: DeadLetterUpdate, batch: BatchReport) -> None:
        """Change dead letters, record the action and move the checkpoint in one transaction."""
        with self.database.session() as connection, connection.transaction():
            changed = update(connection, ids, execution.now)
            execution.record_action(connection, changed)
            batch.done = changed
            batch.skip(_CHANGED, set(ids) - set(changed))
            execution.checkpoint.end_batch(connection, batch)

    def _republish(self, execution: Execution, ids: list[UUID], forced: frozenset[UUID], batch: BatchReport) -> None:
        """Commit the redrive numbers, then publish the messages, then close those that JetStream has stored."""
        if self.republisher is None:
            raise InternalError("this function has no connection to NATS")
        self.republisher.connect()
        with self.database.session() as connection, connection.transaction():
            redrives = store.begin_redrive(connection, ids, forced)
            begun = [redrive.dead_letter_id for redrive in redrives]
            execution.record_action(connection, begun)
        batch.skip(_CHANGED, set(ids) - set(begun))
        stored, failed = self.republisher.publish(redrives)
        batch.done = list(stored)
        for reason, failed_ids in failed.items():
            batch.skip(reason, failed_ids)
        with self.database.session() as connection, connection.transaction():
            store.finish_redrive(connection, stored, execution.now)
            execution.checkpoint.end_batch(connection, batch)


def build_action(command: DeadLetterCommand, source: str, action_id: UUID | None = None) -> OperatorAction:
    """Return the action that is recorded with each batch of the command; `action_id` is new by default."""
    return OperatorAction(
        Operator(command.actor, command.reason, source),
        command.action,
        command.kind,
        {**command.selection, "force": command.force},
        dry_run=command.dry_run,
        action_id=action_id or uuid7(),
    )
