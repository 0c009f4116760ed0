"""Reads pages of the current state of all entitlements, with the cursor of the feed to continue from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.feed.cursor import FeedCursor, Position, SnapshotToken, require_same_history

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire.database import Database
    from grantwire.feed.requests import SnapshotRequest

# One statement, so that the page and the transactions that it sees belong together. It reads one row more than the page
# holds, to know whether there is a next page. Building the JSON in PostgreSQL costs half of building it in Python.
READ_SNAPSHOT = """
WITH page AS (
  SELECT user_id, stock_keeping_unit,
         entitlement_json(e, entitlement_state(status, starts_at, expires_at, %(grace)s::interval,
                                               greatest(statement_timestamp(), updated_at)), true, true) AS entitlement,
         row_number() OVER (ORDER BY user_id, stock_keeping_unit) AS number
    FROM entitlements e
   WHERE (user_id, stock_keeping_unit) > (%(user_id)s::text, %(stock_keeping_unit)s::text)
   ORDER BY user_id, stock_keeping_unit
   LIMIT %(limit)s::integer + 1)
SELECT installation_identity(), pg_snapshot_xmin(pg_current_snapshot())::text,
       pg_snapshot_xmax(pg_current_snapshot())::text,
       coalesce(string_agg(entitlement, ',' ORDER BY number) FILTER (WHERE number <= %(limit)s::integer), ''),
       count(*) > %(limit)s::integer,
       max(user_id) FILTER (WHERE number = %(limit)s::integer),
       max(stock_keeping_unit) FILTER (WHERE number = %(limit)s::integer)
  FROM page
"""


class Snapshot:
    """Read access to the current state of all entitlements. `grace` is added to the end of each."""

    def __init__(self, database: Database, grace: timedelta) -> None:
        self._database = database
        self._grace = f"{grace.total_seconds()} seconds"

    def list(self, request: SnapshotRequest) -> str:
        """Return the JSON response body with the next entitlements, ordered by user and stock keeping unit.

        Status is that of the moment of the page. Every page has `changes_after`, the cursor of the feed from the time
        of the first page, and `next_after` if there are more. Raises GoneError after a restore, and RetryableError.
        """
        after = request.after
        identity, visible_before, first_unused, entitlements, has_more, user_id, stock_keeping_unit = (
            self._database.fetch_row(
                READ_SNAPSHOT,
                {
                    "grace": self._grace,
                    "user_id": after.user_id if after else "",
                    "stock_keeping_unit": after.stock_keeping_unit if after else "",
                    "limit": request.limit,
                },
            )
        )
        first_visible_before = int(visible_before)
        if after:
            first_visible_before = after.visible_before
            require_same_history(after.installation, identity, first_visible_before - 1, int(first_unused))
        changes_after = FeedCursor(identity, Position.before(first_visible_before)).encode()
        body = f'{{"entitlements":[{entitlements}],"changes_after":"{changes_after}"'
        if has_more:
            token = SnapshotToken(identity, first_visible_before, user_id, stock_keeping_unit)
            body += f',"next_after":"{token.encode()}"'
        return body + "}"
