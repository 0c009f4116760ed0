"""Carries out an operator's order, batch by batch (Q2, Q3).

Each batch is a transaction of its own, with its row in `operator_actions`. What was done stays done when a later batch
fails; the same order again goes on with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.dead_letters import operator_actions, store
from grantwire.dead_letters.changes import DISCARD, REDRIVE
from grantwire.dead_letters.dead_letter import Report
from grantwire.dead_letters.listing import list_open
from grantwire.identifiers import uuid7
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection, Database
    from grantwire.dead_letters.changes import Change
    from grantwire.dead_letters.commands import DeadLetterCommand
    from grantwire.dead_letters.dead_letter import DeadLetter
    from grantwire.dead_letters.republish import Republisher

_NOT_OPEN = "not open: closed already, or unknown"
_TOO_OLD = "too old: the inbox may have forgotten it, so its effect could be doubled; use force"
_NO_COPY = "no copy: the message had left the stream before it was recorded; it can only be discarded"
_CHANGED = "left as it is: changed by somebody else in the meantime, or superseded"

_NOW = "SELECT coalesce(%(now)s::timestamptz, now())"


def _quiet(_report: Report) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Batch:
    """One stretch of an order."""

    order: DeadLetterCommand
    action_id: UUID
    number: int
    ids: list[UUID]
    now: datetime | None

    def remember(self, tx: Connection, changed: list[UUID]) -> None:
        operator_actions.record(tx, self.action_id, self.number, self.order, changed)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of all kinds, for an operator. `inbox_memory` is how long the inbox recognises an event."""

    database: Database
    republisher: Republisher
    inbox_memory: timedelta
    batch: int = 500

    def execute(
        self, order: DeadLetterCommand, *, on_batch: Callable[[Report], None] = _quiet, now: datetime | None = None
    ) -> Report:
        """List, redrive or discard what the order chooses; `on_batch` is told of the progress.

        Raises RetryableError if PostgreSQL or NATS is out of reach; what is committed by then stays, and the same order
        again is harmless.
        """
        report = Report(order)
        clock: datetime = self.database.fetch_row(_NOW, {"now": now})[0]
        action_id = uuid7()
        for number, letters in enumerate(self._pages(order, clock, report)):
            if order.action == "list":
                report.letters.extend(letters)
            elif chosen := self._without_obstacles(letters, report, clock):
                self._execute_batch(_Batch(order, action_id, number, chosen, now), report)
            on_batch(report)
        if order.ids is not None:
            report.skip(_NOT_OPEN, set(order.ids) - report.seen)
        if order.action != "list":
            logger.info(
                "dead letter command executed", action_id=str(action_id), actor=order.actor, reason=order.reason, **report.counts()
            )
        return report

    def _pages(self, order: DeadLetterCommand, clock: datetime, report: Report) -> Iterator[list[DeadLetter]]:
        """What the order chooses, in bounded stretches; each begins behind the last, so that none comes twice."""
        after: UUID | None = None
        while (room := min(self.batch, order.limit - len(report.seen))) > 0:
            with self.database.session() as connection:
                letters = list_open(connection, order, clock, after, room)
            report.seen.update(letter.dead_letter_id for letter in letters)
            if letters:
                yield letters
                after = letters[-1].dead_letter_id
            if len(letters) < room:
                return
        report.more = True

    def _without_obstacles(self, letters: list[DeadLetter], report: Report, clock: datetime) -> list[UUID]:
        if report.order.action == "discard":
            return [letter.dead_letter_id for letter in letters]
        oldest = clock - self.inbox_memory
        chosen = []
        for letter in letters:
            if not letter.has_copy:
                report.skip(_NO_COPY, [letter.dead_letter_id])
            elif letter.event_time and letter.event_time < oldest and not report.order.force:
                report.skip(_TOO_OLD, [letter.dead_letter_id])
            else:
                chosen.append(letter.dead_letter_id)
        return chosen

    def _execute_batch(self, batch: _Batch, report: Report) -> None:
        if batch.order.dry_run:
            with self.database.session() as connection:
                batch.remember(connection, batch.ids)
            report.done.extend(batch.ids)
        elif batch.order.action == "discard":
            self._change(batch, DISCARD[batch.order.kind], report)
        elif batch.order.kind in REDRIVE:
            self._change(batch, REDRIVE[batch.order.kind], report)
        else:
            self._republish(batch, report)

    def _change(self, batch: _Batch, change: Change, report: Report) -> None:
        """Change and remember who did it, in one transaction."""
        with self.database.session() as connection, connection.transaction():
            changed = change(connection, batch.ids, batch.now)
            batch.remember(connection, changed)
        report.done.extend(changed)
        report.skip(_CHANGED, set(batch.ids) - set(changed))

    def _republish(self, batch: _Batch, report: Report) -> None:
        """The redrive numbers are raised and committed, then the messages go out, then what has arrived is closed."""
        self.republisher.connect()
        with self.database.session() as connection, connection.transaction():
            redrives = store.begin_redrive(connection, batch.ids)
            begun = [redrive.dead_letter_id for redrive in redrives]
            batch.remember(connection, begun)
        report.skip(_CHANGED, set(batch.ids) - set(begun))
        stored, failed = self.republisher.publish(redrives)
        with self.database.session() as connection:
            store.finish_redrive(connection, stored, batch.now)
        report.done.extend(stored)
        for why, ids in failed.items():
            report.skip(why, ids)
