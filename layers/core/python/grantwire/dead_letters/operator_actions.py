"""The SQL of `operator_actions`: who did what, why and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.database import Jsonb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.dead_letters.commands import DeadLetterCommand

_RECORD = """
INSERT INTO operator_actions
       (action_id, batch, actor, reason, action, kind, selection, dry_run, dead_letter_ids, count)
VALUES (%(action_id)s, %(batch)s, %(actor)s, %(reason)s, %(action)s, %(kind)s, %(selection)s, %(dry_run)s,
        %(dead_letter_ids)s::uuid[], cardinality(%(dead_letter_ids)s::uuid[]))
"""


def record(
    tx: Connection, action_id: UUID, batch: int, command: DeadLetterCommand, dead_letter_ids: Sequence[UUID]
) -> None:
    """Record one batch of a command, in the transaction that changes its dead letters."""
    tx.execute(
        _RECORD,
        {
            "action_id": action_id,
            "batch": batch,
            "actor": command.actor,
            "reason": command.reason,
            "action": command.action,
            "kind": command.kind,
            "selection": Jsonb({**command.selection, "force": command.force}),
            "dry_run": command.dry_run,
            "dead_letter_ids": list(dead_letter_ids),
        },
    )
