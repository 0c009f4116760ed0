"""Executes an operator's command on dead letters, batch by batch (Q2, Q3).

Each batch is a transaction of its own, with its row in `operator_actions`. If a batch fails, the earlier ones stay
committed, and repeating the command continues with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.dead_letters import store
from grantwire.dead_letters.dead_letter import Report
from grantwire.dead_letters.kinds import DISCARD_BY_KIND, REDRIVE_BY_KIND
from grantwire.dead_letters.listing import list_open
from grantwire.observability import logger
from grantwire.operator_actions import Operator, OperatorAction, record_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.commands import DeadLetterCommand
    from grantwire.dead_letters.dead_letter import DeadLetter
    from grantwire.dead_letters.kinds import DeadLetterUpdate
    from grantwire.dead_letters.republish import Republisher

_NOT_OPEN = "not open: already closed, or unknown id"
_TOO_OLD = "too old: the inbox may no longer know the event, so it could take effect twice; use force to redrive it"
_NO_COPY = "no copy: the message was no longer in the stream when it was recorded; it can only be discarded"
_CHANGED = "not changed: closed by another command meanwhile, or its event has another notification"

_NOW = "SELECT coalesce(%(now)s::timestamptz, now())"


def _ignore_progress(_report: Report) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _CommandBatch:
    """The dead letters that one transaction of a command changes."""

    command: DeadLetterCommand
    action: OperatorAction
    number: int
    ids: list[UUID]
    now: datetime | None

    def record_action(self, tx: Connection, changed: list[UUID]) -> None:
        record_dead_letters(tx, self.action, self.number, changed)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of all kinds, for an operator. `inbox_retention` is how long the inbox recognises an event."""

    database: Database
    republisher: Republisher
    inbox_retention: timedelta
    batch_size: int = 500

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
        action = OperatorAction(
            Operator(command.actor, command.reason, source),
            command.action,
            command.kind,
            {**command.selection, "force": command.force},
            dry_run=command.dry_run,
        )
        for number, dead_letters in enumerate(self._pages(command, started_at, report)):
            if command.action == "list":
                report.dead_letters.extend(dead_letters)
            elif ids := self._select_executable(dead_letters, report, started_at):
                self._execute_batch(_CommandBatch(command, action, number, ids, now), report)
            on_batch(report)
        if command.ids is not None:
            report.skip(_NOT_OPEN, set(command.ids) - report.seen)
        if command.action != "list":
            logger.info(
                "dead letter command executed",
                action_id=str(action.action_id),
                actor=command.actor,
                reason=command.reason,
                **report.counts(),
            )
        return report

    def _pages(self, command: DeadLetterCommand, now: datetime, report: Report) -> Iterator[list[DeadLetter]]:
        """Yield the selected dead letters in pages; each page starts after the last id, so none is yielded twice."""
        after: UUID | None = None
        while (limit := min(self.batch_size, command.limit - len(report.seen))) > 0:
            with self.database.session() as connection:
                page = list_open(connection, command, now, after, limit)
            report.seen.update(dead_letter.dead_letter_id for dead_letter in page)
            if page:
                yield page
                after = page[-1].dead_letter_id
            if len(page) < limit:
                return
        report.more = True

    def _select_executable(self, dead_letters: list[DeadLetter], report: Report, now: datetime) -> list[UUID]:
        """Return the ids that the command may change, and report the others as skipped."""
        if report.command.action == "discard":
            return [dead_letter.dead_letter_id for dead_letter in dead_letters]
        oldest = now - self.inbox_retention
        selected = []
        for dead_letter in dead_letters:
            if not dead_letter.has_copy:
                report.skip(_NO_COPY, [dead_letter.dead_letter_id])
            elif dead_letter.event_time and dead_letter.event_time < oldest and not report.command.force:
                report.skip(_TOO_OLD, [dead_letter.dead_letter_id])
            else:
                selected.append(dead_letter.dead_letter_id)
        return selected

    def _execute_batch(self, batch: _CommandBatch, report: Report) -> None:
        kind = batch.command.kind
        if batch.command.dry_run:
            with self.database.session() as connection:
                batch.record_action(connection, batch.ids)
            report.done.extend(batch.ids)
        elif batch.command.action == "discard":
            self._update(batch, DISCARD_BY_KIND[kind], report)
        elif kind in REDRIVE_BY_KIND:
            self._update(batch, REDRIVE_BY_KIND[kind], report)
        else:
            self._republish(batch, report)

    def _update(self, batch: _CommandBatch, update: DeadLetterUpdate, report: Report) -> None:
        """Change dead letters and record the action in one transaction."""
        with self.database.session() as connection, connection.transaction():
            changed = update(connection, batch.ids, batch.now)
            batch.record_action(connection, changed)
        report.done.extend(changed)
        report.skip(_CHANGED, set(batch.ids) - set(changed))

    def _republish(self, batch: _CommandBatch, report: Report) -> None:
        """Commit the redrive numbers, then publish the messages, then close those that JetStream has stored."""
        self.republisher.connect()
        with self.database.session() as connection, connection.transaction():
            redrives = store.begin_redrive(connection, batch.ids)
            begun = [redrive.dead_letter_id for redrive in redrives]
            batch.record_action(connection, begun)
        report.skip(_CHANGED, set(batch.ids) - set(begun))
        stored, failed = self.republisher.publish(redrives)
        with self.database.session() as connection:
            store.finish_redrive(connection, stored, batch.now)
        report.done.extend(stored)
        for reason, ids in failed.items():
            report.skip(reason, ids)
