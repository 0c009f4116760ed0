"""The SQL statement that reads the history of an entitlement (K8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grantwire.database import Database
    from grantwire.entitlements.read_requests import HistoryRequest

# The SQL function reads the audit with the privileges of its owner (infra/sql/functions/entitlement_history.sql). The
# statement reads one change more than the page holds, to know whether there is a next page.
HISTORY = """
WITH page AS (
  SELECT *, row_number() OVER () AS position
    FROM entitlement_history(%(user_id)s, %(sku)s, %(before)s::timestamptz, %(limit)s::integer + 1))
SELECT '{"user_id":' || to_json(%(user_id)s::text) || ',"stock_keeping_unit":' || to_json(%(sku)s::text)
    || ',"history":['
    || coalesce(string_agg(change, ',' ORDER BY position) FILTER (WHERE position <= %(limit)s), '')
    || ']'
    || CASE WHEN count(*) > %(limit)s
            THEN ',"next_before":"' || rfc3339(min(changed_at) FILTER (WHERE position <= %(limit)s)) || '"'
            ELSE '' END
    || '}'
  FROM page
"""


class History:
    """Read access to the applied changes of entitlements, as far as the audit still has them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_changes(self, page: HistoryRequest) -> str:
        """Return one page of the history of an entitlement, newest first, as the JSON text of the response.

        The JSON has `next_before` if there are older changes. Raises only RetryableError.
        """
        parameters = {
            "user_id": page.user_id,
            "sku": page.stock_keeping_unit,
            "limit": page.limit,
            "before": page.before,
        }
        (body,) = self._database.fetch_row(HISTORY, parameters)
        return str(body)
