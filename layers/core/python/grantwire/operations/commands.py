"""Commands of operators: parsing, and storing each at most once for an idempotency key (T1)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.errors import BadRequestError
from grantwire.idempotency import StoredResponse
from grantwire.identifiers import uuid7
from grantwire.operator_actions import parse_actor_and_reason
from grantwire.validation import MAX_NAME_LENGTH
from grantwire_idempotency import TransactionGuard

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.database import Connection, Database
    from grantwire.idempotency import IdempotencySettings, RequestIdentity

REDRIVE = "dead_letters.redrive"
DISCARD = "dead_letters.discard"
REBUILD = "read_model.rebuild"
VERIFY = "read_model.verify"

MAX_RATE = 10_000
_MAX_IDS = 400
_DEAD_LETTER_FIELDS = (
    *("kind", "ids", "filter", "all", "dry_run", "force", "limit", "rate"),
    *("actor", "reason"),
)


@dataclass(frozen=True, slots=True)
class NewCommand:
    """A command of an operator. `arguments` are the fields of the request without actor and reason."""

    kind: str
    actor: str
    reason: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, kind: str, body: Mapping[str, Any]) -> Self:
        """Validate the body of a command without other fields than actor and reason; raises BadRequestError."""
        _refuse_unknown_fields(body, ("actor", "reason"))
        return cls(kind, *parse_actor_and_reason(body))

    @classmethod
    def parse_dead_letters(cls, kind: str, body: Mapping[str, Any]) -> Self:
        """Validate the body of a redrive or discard completely; raises BadRequestError."""
        _refuse_unknown_fields(body, _DEAD_LETTER_FIELDS)
        parse_rate(body)
        ids = body.get("ids")
        if isinstance(ids, list) and len(ids) > _MAX_IDS:
            raise BadRequestError(f"ids must be a list of 1 to {_MAX_IDS} UUIDs; use filter or all to select more")
        arguments = {name: value for name, value in body.items() if name not in {"actor", "reason"}}
        command = cls(kind, *parse_actor_and_reason(body), arguments)
        command.to_dead_letter_command()
        return command

    def to_dead_letter_command(self) -> DeadLetterCommand:
        """Return the command on dead letters; raises BadRequestError if it is not valid."""
        arguments = {name: value for name, value in self.arguments.items() if name != "rate"}
        action = self.kind.rpartition(".")[2]
        return DeadLetterCommand.parse(arguments | {"action": action, "actor": self.actor, "reason": self.reason})


def parse_rate(arguments: Mapping[str, Any]) -> int | None:
    """Return how many dead letters a second the command may change; None means no limit. Raises BadRequestError."""
    rate = arguments.get("rate")
    if "rate" in arguments and (isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= MAX_RATE):
        raise BadRequestError(f"rate must be a whole number between 1 and {MAX_RATE}")
    return rate


def _refuse_unknown_fields(body: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in body:
        if name not in allowed:
            raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a}; allowed: {', '.join(allowed)}")


_INSERT = """
INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)
VALUES (%(command_id)s, %(kind)s, %(arguments)s, %(actor)s, %(reason)s, %(source)s)
RETURNING rfc3339(created_at)
"""


class Commands:
    """Stores commands for the worker that executes them."""

    def __init__(self, database: Database, settings: IdempotencySettings) -> None:
        self._guard = TransactionGuard(database, settings)

    def submit(self, identity: RequestIdentity, command: NewCommand, source: str) -> StoredResponse:
        """Store the command at most once for the key, and return the response, which every repeat gets again.

        `source` says where the command came from. Raises KeyConflictError and RequestInProgressError.
        """

        def insert(tx: Connection) -> StoredResponse:
            command_id = uuid7()
            parameters = {
                "command_id": command_id,
                "kind": command.kind,
                "arguments": Jsonb(dict(command.arguments)),
                "actor": command.actor,
                "reason": command.reason,
                "source": source,
            }
            ((created_at,),) = tx.execute(_INSERT, parameters).fetchall()
            accepted = {
                "command_id": str(command_id),
                "kind": command.kind,
                "status": "PENDING",
                "created_at": created_at,
            }
            return StoredResponse(202, json.dumps(accepted, separators=(",", ":")))

        return self._guard.run(identity, insert)
