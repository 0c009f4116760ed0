"""A user's rights at a glance: how many, which are active, and what changed last (P1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Database

_MOST_RIGHTS = 1000


def parse_user(user_id: object, query: Mapping[str, Sequence[str]]) -> str:
    """Check a path's user_id; there are no query parameters."""
    for name in query:
        raise BadRequestError(f"unknown query parameter {name[:MAX_NAME_LENGTH]!a}; there are none")
    return clean_text("user_id", user_id, longest=MAX_NAME_LENGTH)


# JSON made by PostgreSQL is half the cost of making it here, and `||` keeps the order of the members.
# The primary key brings one user's rows and no others. Two rights may have changed at the same time: the later version,
# then the first name, makes the answer the same each time.
_SUMMARISE = """
WITH rights AS MATERIALIZED (
  SELECT stock_keeping_unit, status, version, changed_at FROM user_entitlements WHERE user_id = %(user_id)s),
active AS (
  SELECT stock_keeping_unit FROM rights WHERE status = 'ACTIVE' ORDER BY stock_keeping_unit LIMIT %(most)s),
newest AS (
  SELECT * FROM rights ORDER BY changed_at DESC, version DESC, stock_keeping_unit LIMIT 1)
SELECT '{"user_id":' || to_json(%(user_id)s::text)
    || ',"active":' || (SELECT count(*) FROM rights WHERE status = 'ACTIVE')
    || ',"revoked":' || (SELECT count(*) FROM rights WHERE status = 'REVOKED')
    || ',"active_rights":['
    || coalesce((SELECT string_agg(to_json(stock_keeping_unit)::text, ',' ORDER BY stock_keeping_unit) FROM active), '')
    || '],"last_change":'
    || coalesce((
         SELECT '{"stock_keeping_unit":' || to_json(stock_keeping_unit) || ',"status":"' || status
             || '","version":' || version || ',"changed_at":"' || rfc3339(changed_at) || '"}'
           FROM newest), 'null')
    || '}'
"""


class Summaries:
    """The read model as callers see it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_user(self, user_id: str) -> str:
        """A user's summary as the JSON text to answer with; raises RetryableError only.

        A user whom nobody knows has none of anything. Counts are complete, of the active rights the first thousand are
        named.
        """
        (body,) = self._database.fetch_row(_SUMMARISE, {"user_id": user_id, "most": _MOST_RIGHTS})
        return str(body)
