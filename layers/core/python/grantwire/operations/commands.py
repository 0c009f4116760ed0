"""Commands of operators: parsing, and storing each at most once for an idempotency key (T1)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.idempotency import StoredResponse
from grantwire.identifiers import uuid7
from grantwire.operator_actions import Operator, parse_actor_and_reason
from grantwire.read_model.commands import RebuildCommand
from grantwire.validation import refuse_unknown_fields
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


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command of an operator. `arguments` are the fields of the request without actor and reason."""

    kind: str
    operator: Operator
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, kind: str, body: Mapping[str, Any], source: str) -> Self:
        """Validate the body of a request completely; raises BadRequestError. `source` says where it came from."""
        arguments = {name: value for name, value in body.items() if name not in {"actor", "reason"}}
        command = cls(kind, Operator(*parse_actor_and_reason(body), source), arguments)
        if kind in {REDRIVE, DISCARD}:
            command.dead_letters()
        elif kind == REBUILD:
            command.rebuild()
        else:
            refuse_unknown_fields(body, ("actor", "reason"))
        return command

    def dead_letters(self) -> DeadLetterCommand:
        """Return the arguments of a redrive or a discard; raises BadRequestError if they are not valid."""
        return DeadLetterCommand.parse(self.kind.rpartition(".")[2], self.arguments)

    def rebuild(self) -> RebuildCommand:
        """Return the arguments of a rebuild; raises BadRequestError if they are not valid."""
        return RebuildCommand.parse(self.arguments)


_INSERT = """
INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)
VALUES (%(command_id)s, %(kind)s, %(arguments)s, %(actor)s, %(reason)s, %(source)s)
RETURNING rfc3339(created_at)
"""


class Commands:
    """Stores commands for the worker that executes them."""

    def __init__(self, database: Database, settings: IdempotencySettings) -> None:
        self._guard = TransactionGuard(database, settings)

    def submit(self, identity: RequestIdentity, command: OperatorCommand) -> StoredResponse:
        """Store the command at most once for the key, and return the response, which every repeat gets again.

        Raises KeyConflictError and RequestInProgressError.
        """

        def insert(tx: Connection) -> StoredResponse:
            command_id = uuid7()
            parameters = {
                "command_id": command_id,
                "kind": command.kind,
                "arguments": Jsonb(dict(command.arguments)),
                "actor": command.operator.actor,
                "reason": command.operator.reason,
                "source": command.operator.source,
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
