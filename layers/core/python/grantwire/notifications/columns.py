"""The columns that a notification carries: from its event, into its dead letter, and back when it is redriven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.database import sql

if TYPE_CHECKING:
    from typing import LiteralString

# `notifications` and `notification_dlq` both have them, which a test checks; what else they have is their own.
CARRIED = (
    "notification_id",
    "event_id",
    "event_type",
    "user_id",
    "stock_keeping_unit",
    "version",
    "payload",
    "trace_id",
)


def carrying(statement: LiteralString) -> bytes:
    """Complete a statement: `{carried}` is the list of these columns."""
    return sql.SQL(statement).format(carried=sql.SQL(", ").join(map(sql.Identifier, CARRIED))).as_bytes()
