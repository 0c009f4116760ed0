"""Executes redrives and discards of dead letters, batch by batch, and their dry runs (Q2, Q3, T1).

Each batch is one transaction: the changes, their row in `operator_actions`, and the progress of the command. A redrive
to NATS needs two: the numbers are committed before the messages are published, the outcome after it.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from grantwire.dead_letters import store
from grantwire.dead_letters.batches import NOT_OPEN, Batch, select_batch
from grantwire.dead_letters.kinds import DISCARD_BY_KIND, REDRIVE_BY_KIND
from grantwire.identifiers import uuid7
from grantwire.operations.command_store import FINISHED, BatchOutcome
from grantwire.operator_actions import OperatorAction, record_dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from grantwire.database import Database
    from grantwire.dead_letters.commands import DeadLetterCommand
    from grantwire.dead_letters.kinds import DeadLetterUpdate
    from grantwire.dead_letters.republish import Republisher
    from grantwire.operations.command_store import ClaimedCommand, Fence
    from grantwire.operations.commands import OperatorCommand

BATCH_SIZE = 500  # dead letters that one transaction changes
MAX_EXAMINED = 5000  # by a dry run, which must end before API Gateway's timeout
_MAX_IDS = 1000  # in the response to a dry run

_NOW = "SELECT coalesce(%(now)s::timestamptz, now())"


class DeadLetterExecutor:
    """Redrives or discards dead letters. `inbox_retention` is how long the inbox recognises an event."""

    def __init__(
        self,
        database: Database,
        republisher: Republisher,
        inbox_retention: timedelta,
        *,
        batch_size: int = BATCH_SIZE,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._database = database
        self._republisher = republisher
        self._inbox_retention = inbox_retention
        self._batch_size = batch_size
        self._clock = clock

    def execute_batch(self, claimed: ClaimedCommand, fence: Fence) -> BatchOutcome:
        """Change the next dead letters of the command, at most `rate` a second; finish it if there are none."""
        command = claimed.command.dead_letters()
        limit = min(self._batch_size, command.limit - claimed.selected, command.rate or self._batch_size)
        batch = self._select(claimed, command, limit)
        if not batch.selected:
            return self._finish(claimed, command, fence)
        delay = timedelta(seconds=limit / command.rate) if command.rate and batch.selected == limit else None
        action = _to_action(claimed.command, command, claimed.command_id)
        updates = DISCARD_BY_KIND if command.action == "discard" else REDRIVE_BY_KIND
        if command.kind in updates:
            return self._change(updates[command.kind], batch, action, fence, delay)
        return self._republish(batch, action, fence, delay)

    def _select(self, claimed: ClaimedCommand, command: DeadLetterCommand, limit: int) -> Batch:
        after = None if claimed.position is None else UUID(claimed.position)
        with self._database.session() as tx:
            oldest = claimed.created_at - self._inbox_retention
            return select_batch(tx, command, claimed.created_at, oldest, after, limit)

    def _change(
        self, update: DeadLetterUpdate, batch: Batch, action: OperatorAction, fence: Fence, delay: timedelta | None
    ) -> BatchOutcome:
        changed: list[UUID] = []
        with self._database.session() as tx, tx.transaction():
            if batch.ids:
                changed = update(tx, batch.ids, self._clock())
                record_dead_letters(tx, action, fence.begin(tx), changed)
                batch.skip_unchanged(changed)
            return fence.end(tx, _to_outcome(batch, len(changed), delay))

    def _republish(self, batch: Batch, action: OperatorAction, fence: Fence, delay: timedelta | None) -> BatchOutcome:
        """Commit the redrive numbers, then publish the messages, then close those that JetStream has stored."""
        stored: dict[UUID, int] = {}
        if batch.ids:
            self._republisher.connect()
            with self._database.session() as tx, tx.transaction():
                redrives = store.begin_redrive(tx, batch.ids, batch.forced)
                begun = [redrive.dead_letter_id for redrive in redrives]
                record_dead_letters(tx, action, fence.begin(tx), begun)
            batch.skip_unchanged(begun)
            stored, failed = self._republisher.publish(redrives)
            batch.skipped += Counter({reason: len(ids) for reason, ids in failed.items()})
        with self._database.session() as tx, tx.transaction():
            store.finish_redrive(tx, stored, self._clock())
            return fence.end(tx, _to_outcome(batch, len(stored), delay))

    def _finish(self, claimed: ClaimedCommand, command: DeadLetterCommand, fence: Fence) -> BatchOutcome:
        more = claimed.selected == command.limit and bool(self._select(claimed, command, 1).selected)
        skipped = _count_not_open(command, claimed.selected)
        with self._database.session() as tx, tx.transaction():
            return fence.end(tx, BatchOutcome(FINISHED, skipped=skipped, result={"more": more}))


class DryRuns:
    """Says what a command would do with the first dead letters that it selects."""

    def __init__(self, database: Database, inbox_retention: timedelta) -> None:
        self._database = database
        self._inbox_retention = inbox_retention

    def execute(self, operator_command: OperatorCommand, now: datetime | None = None) -> dict[str, Any]:
        """Return the JSON object of the response; nothing changes. Each batch leaves its row in `operator_actions`."""
        command = operator_command.dead_letters()
        action = _to_action(operator_command, command)
        (given_at,) = self._database.fetch_row(_NOW, {"now": now})
        limit, number = min(command.limit, MAX_EXAMINED), 0
        total, batch = Batch(), Batch()
        with self._database.session() as tx:
            while True:
                size = min(BATCH_SIZE, limit - total.selected)
                batch = select_batch(tx, command, given_at, given_at - self._inbox_retention, total.last, size or 1)
                if not size or not batch.selected:
                    break
                if batch.ids:
                    record_dead_letters(tx, action, number, batch.ids)
                total.last, number = batch.last, number + 1
                total.selected += batch.selected
                total.ids += batch.ids
                total.skipped += batch.skipped
        return {
            "dry_run": True,
            "kind": command.kind,
            "action": command.action,
            "selected": total.selected,
            "would_change": len(total.ids),
            "skipped": total.skipped + _count_not_open(command, total.selected),
            "ids": [str(dead_letter_id) for dead_letter_id in total.ids[:_MAX_IDS]],
            "more": batch.selected > 0,
        }


def _to_outcome(batch: Batch, done: int, delay: timedelta | None) -> BatchOutcome:
    return BatchOutcome(str(batch.last), batch.selected, done, batch.skipped, delay=delay)


def _count_not_open(command: DeadLetterCommand, selected: int) -> Counter[str]:
    """Count the ids of the request that were not selected."""
    return +Counter({NOT_OPEN: len(command.ids or ()) - selected})


def _to_action(
    operator_command: OperatorCommand, command: DeadLetterCommand, action_id: UUID | None = None
) -> OperatorAction:
    """Return the action that is recorded with each batch."""
    return OperatorAction(
        operator_command.operator,
        command.action,
        command.kind,
        {**command.selection, "force": command.force},
        dry_run=command.dry_run,
        action_id=action_id or uuid7(),
    )
