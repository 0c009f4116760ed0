"""The next batch of a command on dead letters: what it selects, and what may be redriven (Q2, Q3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grantwire.dead_letters.listing import list_open
from grantwire.dead_letters.refused import Refused, find_refused

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.dead_letters.commands import DeadLetterCommand
    from grantwire.dead_letters.listing import DeadLetter

NOT_OPEN = "not open: already closed, or unknown id"
_TOO_OLD = "too old: the inbox may no longer know the event, so it could take effect twice; use force to redrive it"
_NOT_AUDITED = "too old: the audit no longer has the event; check that it is genuine, then use force to redrive it"
_NOT_GENUINE = "not genuine: the audit has no such change, so the bridge would terminate the message again; discard it"
_UNPARSABLE = "not an event: the bridge would terminate the message again; discard it"
_NO_COPY = "no copy: the message was no longer in the stream when it was recorded; it can only be discarded"
_CHANGED = "not changed: closed by another command meanwhile, or its event has another notification"


@dataclass(slots=True)
class Batch:
    """Dead letters that a command selects, in order of their ids: `selected` of them, up to the id `last`.

    `ids` are those that the command may change, `forced` those of them that the audit does not have, and `skipped`
    counts the others by reason.
    """

    last: UUID | None = None
    selected: int = 0
    ids: list[UUID] = field(default_factory=list)
    forced: frozenset[UUID] = frozenset()
    skipped: Counter[str] = field(default_factory=Counter)

    def skip_unchanged(self, changed: Collection[UUID]) -> None:
        """Count the dead letters that could be changed, but are not in `changed`."""
        self.skipped += Counter({_CHANGED: len(self.ids) - len(changed)})


def select_batch(
    tx: Connection, command: DeadLetterCommand, given_at: datetime, oldest: datetime, after: UUID | None, limit: int
) -> Batch:
    """Return the next `limit` dead letters after the id `after` that a command given at `given_at` selects.

    Dead letters that appeared later are selected only by their ids: the operator did not see them. An event from before
    `oldest`, which the inbox may have forgotten, is redriven only with `force`.
    """
    until = None if command.ids is not None else given_at
    page = list_open(tx, command, given_at, after, limit, until=until)
    if not page:
        return Batch()
    batch = Batch(page[-1].dead_letter_id, len(page))
    # Only messages pass through the bridge, which refuses what is not in the audit.
    refused = find_refused(tx, page) if (command.action, command.kind) == ("redrive", "nats") else Refused()
    for dead_letter in page:
        reason = _find_obstacle(command, dead_letter, refused, oldest)
        if reason is None:
            batch.ids.append(dead_letter.dead_letter_id)
        else:
            batch.skipped[reason] += 1
    batch.forced = refused.too_old
    return batch


def _find_obstacle(
    command: DeadLetterCommand, dead_letter: DeadLetter, refused: Refused, oldest: datetime
) -> str | None:
    """Return why the command may not change a dead letter; None if it may. Any can be discarded."""
    if command.action == "discard":
        return None
    obstacles = {
        _NO_COPY: not dead_letter.has_copy,
        _UNPARSABLE: dead_letter.dead_letter_id in refused.unparsable,
        _NOT_GENUINE: dead_letter.dead_letter_id in refused.not_genuine,
        _NOT_AUDITED: not command.force and dead_letter.dead_letter_id in refused.too_old,
        _TOO_OLD: not command.force and dead_letter.event_time is not None and dead_letter.event_time < oldest,
    }
    return next((reason for reason, applies in obstacles.items() if applies), None)
