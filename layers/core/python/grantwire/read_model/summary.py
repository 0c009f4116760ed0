"""A user's summary: the number of entitlements by status, the active ones and the last change (P1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.errors import BadRequestError
from grantwire.validation import MAX_NAME_LENGTH, clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grantwire.database import Database

_MAX_LISTED = 1000


def parse_user_id(user_id: object, query: Mapping[str, Sequence[str]]) -> str:
    """Validate the user_id of the path, and that there are no query parameters; raises BadRequestError."""
    for name in query:
        raise BadRequestError(f"unknown query parameter {name[:MAX_NAME_LENGTH]!a}; none are allowed")
    return clean_text("user_id", user_id, max_length=MAX_NAME_LENGTH)


# Building the JSON in PostgreSQL costs half of building it in Python, and `||` keeps the order of the keys.
# The scan of the primary key reads only the rows of one user. If two entitlements changed at the same time, the higher
# version and then the name decide, so that the response is always the same.
_SUMMARIZE = """
WITH owned AS MATERIALIZED (
  SELECT stock_keeping_unit, status, version, changed_at FROM user_entitlements WHERE user_id = %(user_id)s),
active AS (
  SELECT stock_keeping_unit FROM owned WHERE status = 'ACTIVE' ORDER BY stock_keeping_unit LIMIT %(limit)s),
newest AS (
  SELECT * FROM owned ORDER BY changed_at DESC, version DESC, stock_keeping_unit LIMIT 1)
SELECT '{"user_id":' || to_json(%(user_id)s::text)
    || ',"active":' || (SELECT count(*) FROM owned WHERE status = 'ACTIVE')
    || ',"revoked":' || (SELECT count(*) FROM owned WHERE status = 'REVOKED')
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
    """Read access to the summaries of users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, user_id: str) -> str:
        """Return the JSON response body with a user's summary; raises only RetryableError.

        The counts are complete; of the active entitlements the first thousand are listed. An unknown user has a summary
        with counts of zero.
        """
        (body,) = self._database.fetch_row(_SUMMARIZE, {"user_id": user_id, "limit": _MAX_LISTED})
        return str(body)
