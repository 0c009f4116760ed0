"""A user's summary: the number of entitlements by status, the active ones and the last change (P1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grantwire.database import Database
    from grantwire.validation import PageRequest

# Triggers maintain the counts and the last change of each user in user_summaries, and an index lists the active
# entitlements. So the statement reads one row and one page, however many entitlements the user has. It reads one row
# more than the page holds, to know whether there is a next page. Building the JSON in PostgreSQL costs half of building
# it in Python, and `||` keeps the order of the keys.
SUMMARIZE = """
WITH page AS (
  SELECT stock_keeping_unit, row_number() OVER (ORDER BY stock_keeping_unit) AS position
    FROM user_entitlements
   WHERE user_id = %(user_id)s AND status = 'ACTIVE' AND stock_keeping_unit > %(after)s
   ORDER BY stock_keeping_unit
   LIMIT %(limit)s + 1)
SELECT '{"user_id":' || to_json(%(user_id)s::text)
    || ',"active":' || coalesce(s.active, 0) || ',"revoked":' || coalesce(s.revoked, 0)
    || ',"active_rights":['
    || coalesce((SELECT string_agg(to_json(stock_keeping_unit)::text, ',' ORDER BY position)
                   FROM page WHERE position <= %(limit)s), '')
    || '],"last_change":'
    || coalesce('{"stock_keeping_unit":' || to_json(s.last_stock_keeping_unit) || ',"status":"' || s.last_status
                || '","version":' || s.last_version || ',"changed_at":"' || rfc3339(s.last_changed_at) || '"}', 'null')
    || coalesce((SELECT ',"next_after":' || to_json(max(stock_keeping_unit) FILTER (WHERE position <= %(limit)s))
                   FROM page HAVING count(*) > %(limit)s), '')
    || '}'
  FROM (VALUES (%(user_id)s::text)) AS requested (user_id)
  LEFT JOIN user_summaries s ON s.user_id = requested.user_id
"""


class Summaries:
    """Read access to the summaries of users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, page: PageRequest) -> str:
        """Return the JSON response body with a user's summary; raises only RetryableError.

        The counts are complete. The list is one page of the active entitlements, and the JSON has `next_after` if there
        are more after it. An unknown user has a summary with counts of zero.
        """
        (body,) = self._database.fetch_row(SUMMARIZE, page._asdict())
        return str(body)
