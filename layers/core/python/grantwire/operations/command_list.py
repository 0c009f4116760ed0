"""Commands of operators as the operations API shows them (T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.errors import NotFoundError
from grantwire.operations.cursors import Cursor
from grantwire.operations.parsing import parse_choice, parse_path_uuid
from grantwire.validation import parse_page_size, single_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from grantwire.database import Database

STATUSES = ("PENDING", "RUNNING", "DONE", "FAILED")
_MAX_LIMIT = 200
_DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True)
class CommandQuery:
    """A request for a page of commands, with one status or any."""

    status: str | None = None
    limit: int = _DEFAULT_LIMIT
    cursor: Cursor | None = None

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the query parameters; raises BadRequestError."""
        given = single_values(query, "status", "limit", "cursor")
        return cls(
            parse_choice("status", given["status"], STATUSES) if "status" in given else None,
            parse_page_size(given["limit"], maximum=_MAX_LIMIT) if "limit" in given else _DEFAULT_LIMIT,
            Cursor.parse(given["cursor"]) if "cursor" in given else None,
        )


# The result of a command is complete when it is DONE.
_LIST = """
SELECT c.created_at, c.command_id, jsonb_build_object(
         'command_id', c.command_id, 'kind', c.kind, 'status', c.status, 'arguments', c.arguments,
         'actor', c.actor, 'reason', c.reason, 'source', c.source,
         'progress', jsonb_build_object('selected', c.selected, 'done', c.done, 'skipped', c.skipped),
         'result', CASE c.status WHEN 'DONE' THEN c.result END, 'error', c.last_error, 'attempts', c.attempt_count,
         'created_at', rfc3339(c.created_at), 'started_at', rfc3339(c.started_at),
         'updated_at', rfc3339(c.updated_at), 'finished_at', rfc3339(c.finished_at))
  FROM operator_commands c
 WHERE (%(command_id)s::uuid IS NULL OR c.command_id = %(command_id)s::uuid)
   AND (%(status)s::text IS NULL OR c.status = %(status)s::text)
   AND (%(time)s::timestamptz IS NULL OR (c.created_at, c.command_id) < (%(time)s::timestamptz, %(id)s::uuid))
 ORDER BY c.created_at DESC, c.command_id DESC
 LIMIT %(limit)s
"""


class CommandList:
    """Read access to commands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_page(self, query: CommandQuery) -> dict[str, Any]:
        """Return one page as the JSON object of the response, newest first."""
        rows = self._read(query.limit + 1, status=query.status, cursor=query.cursor)
        page: dict[str, Any] = {"commands": [command for _, _, command in rows[: query.limit]]}
        if len(rows) > query.limit:
            page["next_cursor"] = Cursor(*rows[query.limit - 1][:2]).encode()
        return page

    def find(self, command_id: str | None) -> dict[str, Any]:
        """Return one command; raises NotFoundError if there is none."""
        for _, _, command in self._read(1, command_id=parse_path_uuid("command", command_id)):
            found: dict[str, Any] = command
            return found
        raise NotFoundError("no such command")

    def _read(
        self, limit: int, *, command_id: object = None, status: str | None = None, cursor: Cursor | None = None
    ) -> list[tuple[Any, ...]]:
        parameters = {
            "command_id": command_id,
            "status": status,
            "time": cursor and cursor.time,
            "id": cursor and cursor.id,
            "limit": limit,
        }
        with self._database.session() as connection:
            return connection.execute(_LIST, parameters).fetchall()
