"""The columns that `notifications` and `notification_dlq` share: copied to the dead letter, and back by a redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.database import sql

if TYPE_CHECKING:
    from typing import LiteralString

# A test checks that both tables have these columns. The other columns of each table are not copied.
SHARED_COLUMNS = (
    "notification_id",
    "event_id",
    "event_type",
    "user_id",
    "stock_keeping_unit",
    "version",
    "payload",
    "trace_id",
    "occurred_at",
)


def expand_shared_columns(statement: LiteralString, **parts: LiteralString) -> bytes:
    """Replace `{shared_columns}` in an SQL statement with the list of shared columns, and `{name}` with that part."""
    columns = sql.SQL(", ").join(map(sql.Identifier, SHARED_COLUMNS))
    composed = {name: sql.SQL(part) for name, part in parts.items()}
    return sql.SQL(statement).format(shared_columns=columns, **composed).as_bytes()
