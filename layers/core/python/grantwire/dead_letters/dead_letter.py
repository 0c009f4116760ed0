"""An open dead letter of any kind, and the report of an executed command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from grantwire.dead_letters.commands import DeadLetterCommand

# Lambda limits the size of a function's result. Counts are always complete.
_MAX_REPORTED_IDS = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An open dead letter.

    `since` is when it became a dead letter, `event_time` when its event occurred, if known. `has_copy` is false if the
    message was not copied, so that it can only be discarded.
    """

    dead_letter_id: UUID
    event_type: str | None
    user_id: str | None
    error: str | None
    since: datetime
    event_time: datetime | None
    has_copy: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object for the function's result."""
        return {
            "id": str(self.dead_letter_id),
            "event_type": self.event_type,
            "user_id": self.user_id,
            "error": self.error,
            "since": self.since.isoformat(),
            "event_time": self.event_time.isoformat() if self.event_time else None,
            "has_copy": self.has_copy,
        }


@dataclass(slots=True)
class BatchReport:
    """The outcome of one batch: its last dead letter, how many it had, ids changed, and ids skipped by reason."""

    last: UUID
    selected: int
    done: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)

    def skip(self, reason: str, ids: Iterable[UUID]) -> None:
        """Add dead letters that were not changed."""
        if ids := sorted(ids):
            self.skipped.setdefault(reason, []).extend(ids)


@dataclass(slots=True)
class Report:
    """The outcome of a command so far: ids selected, ids changed, and ids skipped by reason."""

    command: DeadLetterCommand
    seen: set[UUID] = field(default_factory=set)
    done: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    more: bool = False

    def add(self, page: list[DeadLetter], batch: BatchReport | None) -> None:
        """Add a page that was listed, or the outcome of its batch."""
        self.seen.update(dead_letter.dead_letter_id for dead_letter in page)
        if batch is None:
            self.dead_letters.extend(page)
            return
        self.done.extend(batch.done)
        for reason, ids in batch.skipped.items():
            self.skip(reason, ids)

    def skip(self, reason: str, ids: Iterable[UUID]) -> None:
        """Add dead letters that were not changed."""
        if ids := sorted(ids):
            self.skipped.setdefault(reason, []).extend(ids)

    def counts(self) -> dict[str, Any]:
        """Return the counts for the log and for the function's result."""
        return {
            "action": self.command.action,
            "kind": self.command.kind,
            "dry_run": self.command.dry_run,
            "selected": len(self.seen),
            "done": len(self.done),
            "skipped": {reason: len(ids) for reason, ids in self.skipped.items()},
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the function's result: complete counts, and the first thousand ids."""
        if self.command.action == "list":
            return {
                "action": "list",
                "kind": self.command.kind,
                "letters": [dead_letter.as_dict() for dead_letter in self.dead_letters],
                "more": self.more,
            }
        return {
            **self.counts(),
            "ids": _first_ids(self.done),
            "skipped_ids": {reason: _first_ids(ids) for reason, ids in self.skipped.items()},
            "more": self.more,
        }


def _first_ids(ids: list[UUID]) -> list[str]:
    return [str(dead_letter_id) for dead_letter_id in ids[:_MAX_REPORTED_IDS]]
