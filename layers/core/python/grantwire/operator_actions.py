"""The administrative actions in `operator_actions`: who did what, why, from where and when (G4).

An action is recorded in the transaction that performs it, so neither is committed without the other. Rows are only
added: no role of the functions can change or delete them, and a trigger refuses it to every other role.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.errors import BadRequestError
from grantwire.identifiers import uuid7
from grantwire.validation import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from grantwire.database import Connection

# In characters. CHECK constraints of the table have the same limit.
MAX_TEXT_LENGTH = 500
_MEANINGS = {"actor": "who gives the command", "reason": "why"}


@dataclass(frozen=True, slots=True)
class Operator:
    """Who gives a command and why, in the operator's words, and where the command came from.

    The entry point sets `source`; it is never a part of the command.
    """

    actor: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """An operator's command. If it takes several transactions, or changes several clients, the rows have the same id.

    `selection` has the parameters of the command, without secrets.
    """

    operator: Operator
    action: str
    kind: str
    selection: Mapping[str, Any]
    dry_run: bool = False
    action_id: UUID = field(default_factory=uuid7)


def parse_actor_and_reason(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the fields `actor` and `reason` of a command; both are required. Raises BadRequestError."""
    return _parse_text(event, "actor"), _parse_text(event, "reason")


def _parse_text(event: Mapping[str, Any], name: str) -> str:
    if name not in event:
        raise BadRequestError(f"{name} is missing: state {_MEANINGS[name]}; it is recorded with the action")
    return clean_text(name, event[name], max_length=MAX_TEXT_LENGTH)


_RECORD = """
INSERT INTO operator_actions
       (action_id, batch, actor, reason, source, action, kind, selection, dry_run, dead_letter_ids, count)
VALUES (%(action_id)s, %(batch)s, %(actor)s, %(reason)s, %(source)s, %(action)s, %(kind)s, %(selection)s, %(dry_run)s,
        %(dead_letter_ids)s::uuid[], %(count)s)
"""


def record_dead_letters(tx: Connection, action: OperatorAction, batch: int, dead_letter_ids: Sequence[UUID]) -> None:
    """Record one batch of a command, in the transaction that changes its dead letters."""
    ids = list(dead_letter_ids)
    tx.execute(_RECORD, {**_parameters(action), "batch": batch, "dead_letter_ids": ids, "count": len(ids)})


def record_rebuild(tx: Connection, action: OperatorAction, batch: int, count: int) -> None:
    """Record one transaction of a rebuild, which changed `count` rows of the read model."""
    tx.execute(_RECORD, {**_parameters(action), "batch": batch, "dead_letter_ids": None, "count": count})


# The role of manage_clients may insert only these columns, and the role of the other functions not client_id.
_RECORD_CLIENT = """
INSERT INTO operator_actions
       (action_id, batch, actor, reason, source, action, kind, selection, dry_run, client_id, count)
VALUES (%(action_id)s, %(batch)s, %(actor)s, %(reason)s, %(source)s, %(action)s, %(kind)s, %(selection)s, %(dry_run)s,
        %(client_id)s, %(count)s)
"""


def record_client(
    tx: Connection, action: OperatorAction, client_id: str, batch: int = 0, *, changed: bool = True
) -> None:
    """Record an action on a client, in the transaction that changes it; one on several has a batch for each."""
    parameters = {**_parameters(action), "batch": batch, "client_id": client_id, "count": int(changed)}
    tx.execute(_RECORD_CLIENT, parameters)


def _parameters(action: OperatorAction) -> dict[str, Any]:
    return {
        "action_id": action.action_id,
        "actor": action.operator.actor,
        "reason": action.operator.reason,
        "source": action.operator.source,
        "action": action.action,
        "kind": action.kind,
        "selection": Jsonb(dict(action.selection)),
        "dry_run": action.dry_run,
    }
