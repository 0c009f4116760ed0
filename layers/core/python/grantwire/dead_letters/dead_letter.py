"""A dead letter of any kind as an operator sees it, and what became of an order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from grantwire.dead_letters.commands import DeadLetterCommand

# An answer of a function is limited; counts are always complete.
_MOST_IDS = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An open dead letter. `since` is when it arose, `event_time` when its event did, as far as that is known."""

    dead_letter_id: UUID
    event_type: str | None
    user_id: str | None
    error: str | None
    since: datetime
    event_time: datetime | None
    has_copy: bool = True

    def as_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
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
class Report:
    """What was done, and what was not and why; it grows with each batch."""

    order: DeadLetterCommand
    seen: set[UUID] = field(default_factory=set)
    done: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    more: bool = False

    def skip(self, why: str, ids: Iterable[UUID]) -> None:
        """Add what was left as it is."""
        if ids := sorted(ids):
            self.skipped.setdefault(why, []).extend(ids)

    def counts(self) -> dict[str, Any]:
        """For a log line."""
        return {
            "action": self.order.action,
            "kind": self.order.kind,
            "dry_run": self.order.dry_run,
            "selected": len(self.seen),
            "done": len(self.done),
            "skipped": {why: len(ids) for why, ids in self.skipped.items()},
        }

    def as_dict(self) -> dict[str, Any]:
        """The answer: complete counts, and the first of the ids."""
        if self.order.action == "list":
            return {
                "action": "list",
                "kind": self.order.kind,
                "letters": [letter.as_dict() for letter in self.letters],
                "more": self.more,
            }
        return {
            **self.counts(),
            "ids": _shown(self.done),
            "skipped_ids": {why: _shown(ids) for why, ids in self.skipped.items()},
            "more": self.more,
        }


def _shown(ids: list[UUID]) -> list[str]:
    return [str(one) for one in ids[:_MOST_IDS]]
