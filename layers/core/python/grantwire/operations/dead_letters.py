"""Dead letters as the operations API shows them: pages, groups, and one in full (T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.dead_letters.commands import KINDS
from grantwire.errors import NotFoundError
from grantwire.operations.actions import find_last_actions
from grantwire.operations.cursors import Cursor
from grantwire.operations.messages import describe_message
from grantwire.operations.parsing import format_time, parse_choice, parse_path_uuid
from grantwire.validation import MAX_NAME_LENGTH, clean_text, parse_page_size, parse_time, single_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Self

    from grantwire.database import Database

MAX_CAUSE_LENGTH = 200
_MAX_LIMIT = 200
_DEFAULT_LIMIT = 50
_CAP = 10_000
_MAX_GROUPS = 100
_PARAMETERS = ("kind", "state", "cause", "user_id", "stock_keeping_unit", "since", "limit", "cursor")
_COLUMNS = (
    *("kind", "dead_letter_id", "state", "cause", "error", "event_id", "event_type", "user_id", "stock_keeping_unit"),
    *("since", "event_time", "closed_at", "has_copy"),
)


@dataclass(frozen=True, slots=True)
class DeadLetterQuery:
    """A request for a page of dead letters that meet all conditions that are set."""

    is_open: bool = True
    kind: str | None = None
    cause: str | None = None
    user_id: str | None = None
    stock_keeping_unit: str | None = None
    since: datetime | None = None
    limit: int = _DEFAULT_LIMIT
    cursor: Cursor | None = None

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the query parameters; raises BadRequestError."""
        given = single_values(query, *_PARAMETERS)
        lengths = {"cause": MAX_CAUSE_LENGTH, "user_id": MAX_NAME_LENGTH, "stock_keeping_unit": MAX_NAME_LENGTH}
        texts = {
            name: clean_text(name, given[name], max_length=length) for name, length in lengths.items() if name in given
        }
        return cls(
            is_open=parse_choice("state", given.get("state", "open"), ("open", "closed")) == "open",
            kind=parse_choice("kind", given["kind"], KINDS) if "kind" in given else None,
            since=parse_time("since", given["since"]) if "since" in given else None,
            limit=parse_page_size(given["limit"], maximum=_MAX_LIMIT) if "limit" in given else _DEFAULT_LIMIT,
            cursor=Cursor.parse(given["cursor"]) if "cursor" in given else None,
            **texts,
        )


_LIST_OPEN = """
SELECT kind, dead_letter_id, 'OPEN', cause, error, event_id, event_type, user_id, stock_keeping_unit, since,
       event_time, NULL::timestamptz, has_copy
  FROM dead_letters
 WHERE (%(kind)s::text IS NULL OR kind = %(kind)s::text)
   AND (%(cause)s::text IS NULL OR cause = %(cause)s::text)
   AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s::text)
   AND (%(stock_keeping_unit)s::text IS NULL OR stock_keeping_unit = %(stock_keeping_unit)s::text)
   AND (%(since)s::timestamptz IS NULL OR since >= %(since)s::timestamptz)
   AND (%(time)s::timestamptz IS NULL OR (since, dead_letter_id) < (%(time)s::timestamptz, %(id)s::uuid))
 ORDER BY since DESC, dead_letter_id DESC
 LIMIT %(limit)s
"""

_LIST_CLOSED = """
SELECT kind, dead_letter_id, state, cause, error, event_id, event_type, user_id, stock_keeping_unit, since,
       event_time, closed_at, has_copy
  FROM closed_dead_letters
 WHERE (%(kind)s::text IS NULL OR kind = %(kind)s::text)
   AND (%(cause)s::text IS NULL OR cause = %(cause)s::text)
   AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s::text)
   AND (%(stock_keeping_unit)s::text IS NULL OR stock_keeping_unit = %(stock_keeping_unit)s::text)
   AND (%(since)s::timestamptz IS NULL OR since >= %(since)s::timestamptz)
   AND (%(time)s::timestamptz IS NULL OR (closed_at, dead_letter_id) < (%(time)s::timestamptz, %(id)s::uuid))
 ORDER BY closed_at DESC, dead_letter_id DESC
 LIMIT %(limit)s
"""

_GROUPS = "SELECT dead_letter_groups(%(cap)s, %(groups)s)"

# Each SQL function below returns its dead letter in full, or no row.
_FIND = """
SELECT found.dead_letter, found.payload
  FROM dead_letter_find(%(kind)s, %(id)s::uuid) AS found
"""


class DeadLetterReader:
    """Read access to dead letters of all kinds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_page(self, query: DeadLetterQuery) -> dict[str, Any]:
        """Return one page as the JSON object of the response: open ones newest first, closed ones last closed first."""
        parameters = {
            **{name: getattr(query, name) for name in ("kind", "cause", "user_id", "stock_keeping_unit", "since")},
            "time": query.cursor and query.cursor.time,
            "id": query.cursor and query.cursor.id,
            "limit": query.limit + 1,
        }
        with self._database.session() as connection:
            rows = connection.execute(_LIST_OPEN if query.is_open else _LIST_CLOSED, parameters).fetchall()
            entries = [dict(zip(_COLUMNS, row, strict=True)) for row in rows[: query.limit]]
            actions = find_last_actions(connection, [entry["dead_letter_id"] for entry in entries])
        listed = [_to_json(entry) for entry in entries]
        page: dict[str, Any] = {
            "dead_letters": [{**entry, "last_action": actions.get(entry["dead_letter_id"])} for entry in listed]
        }
        if len(rows) > query.limit:
            last = entries[-1]
            page["next_cursor"] = Cursor(
                last["since" if query.is_open else "closed_at"], last["dead_letter_id"]
            ).encode()
        return page

    def list_groups(self) -> dict[str, Any]:
        """Return the open dead letters by kind and cause, largest group first."""
        groups: dict[str, Any] = self._database.fetch_row(_GROUPS, {"cap": _CAP, "groups": _MAX_GROUPS})[0]
        return groups

    def find(self, kind: str | None, dead_letter_id: str | None) -> dict[str, Any]:
        """Return one dead letter with its message and the actions on it; raises NotFoundError if there is none."""
        if kind not in KINDS:
            raise NotFoundError("no such dead letter")
        found_id = parse_path_uuid("dead letter", dead_letter_id)
        with self._database.session() as connection:
            row = connection.execute(_FIND, {"kind": kind, "id": found_id}).fetchone()
            actions = find_last_actions(connection, [found_id])
        if row is None:
            raise NotFoundError("no such dead letter")
        found: dict[str, Any] = row[0]
        message = describe_message(found["message"], row[1])
        return {**found, "message": message, "last_action": actions.get(found["dead_letter_id"])}


def _to_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: format_time(entry[name]) for name in ("since", "event_time", "closed_at")}
    event_id = entry["event_id"]
    return {
        **entry,
        **times,
        "dead_letter_id": str(entry["dead_letter_id"]),
        "event_id": None if event_id is None else str(event_id),
    }
