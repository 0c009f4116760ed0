"""A user's summary: the number of entitlements by status, the active ones and the last change (P1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from grantwire.database import Database
    from grantwire.validation import PageRequest

# Triggers maintain the counts and the last change of each user in user_summaries, and an index lists the entitlements
# with the recorded status ACTIVE. `due` finds those that are scheduled or have reached their end, by two more indexes,
# so that the summary is exact before a worker records a start or an end. The statement reads one row, one page and the
# entitlements that are due, however many others the user has. It reads one row more than the page holds, to know
# whether there is a next page.
#
# The ranges in `due` only select rows; entitlement_state decides. Each ORDER BY makes PostgreSQL use the index with
# this time: in a plan for an empty table, which a connection may keep, all indexes with the user would cost the same.
# Building the JSON in PostgreSQL costs half of building it in Python, and `||` keeps the order of the keys.
SUMMARIZE = """
WITH due AS (
 (SELECT stock_keeping_unit, status, changed_at, starts_at, expires_at FROM user_entitlements
   WHERE user_id = %(user_id)s AND status = 'ACTIVE'
     AND starts_at > coalesce(%(now)s::timestamptz, statement_timestamp()) ORDER BY starts_at)
   UNION
 (SELECT stock_keeping_unit, status, changed_at, starts_at, expires_at FROM user_entitlements
   WHERE user_id = %(user_id)s AND status = 'ACTIVE'
     AND expires_at <= coalesce(%(now)s::timestamptz, statement_timestamp()) ORDER BY expires_at)),
decided AS (
  SELECT stock_keeping_unit,
         entitlement_state(status, starts_at, expires_at, %(grace)s::interval,
                           greatest(coalesce(%(now)s::timestamptz, statement_timestamp()), changed_at)) AS state
    FROM due),
inactive AS MATERIALIZED (
  SELECT stock_keeping_unit, state FROM decided WHERE state <> 'ACTIVE'),
page AS (
  SELECT stock_keeping_unit, row_number() OVER (ORDER BY stock_keeping_unit) AS position
    FROM user_entitlements
   WHERE user_id = %(user_id)s AND status = 'ACTIVE' AND stock_keeping_unit > %(after)s
     AND stock_keeping_unit NOT IN (SELECT stock_keeping_unit FROM inactive)
   ORDER BY stock_keeping_unit
   LIMIT %(limit)s + 1)
SELECT '{"user_id":' || to_json(%(user_id)s::text)
    || ',"active":' || coalesce(s.active, 0) - c.scheduled - c.expired || ',"revoked":' || coalesce(s.revoked, 0)
    || coalesce(',"scheduled":' || nullif(c.scheduled, 0), '')
    || coalesce(',"expired":' || nullif(coalesce(s.expired, 0) + c.expired, 0), '')
    || ',"active_rights":['
    || coalesce((SELECT string_agg(to_json(stock_keeping_unit)::text, ',' ORDER BY position)
                   FROM page WHERE position <= %(limit)s), '')
    || '],"last_change":'
    || coalesce('{"stock_keeping_unit":' || to_json(s.last_stock_keeping_unit) || ',"status":"' || s.last_status
                || '","version":' || s.last_version || ',"changed_at":"' || rfc3339(s.last_changed_at) || '"}', 'null')
    || coalesce((SELECT ',"next_after":' || to_json(max(stock_keeping_unit) FILTER (WHERE position <= %(limit)s))
                   FROM page HAVING count(*) > %(limit)s), '')
    || '}'
  FROM (SELECT count(*) FILTER (WHERE state = 'SCHEDULED') AS scheduled,
               count(*) FILTER (WHERE state = 'EXPIRED') AS expired FROM inactive) AS c
  LEFT JOIN user_summaries s ON s.user_id = %(user_id)s
"""


class Summaries:
    """Read access to the summaries of users; an entitlement ends at its expires_at plus `grace`, an SQL interval."""

    def __init__(self, database: Database, grace: str) -> None:
        self._database = database
        self._grace = grace

    def get(self, page: PageRequest, now: datetime | None = None) -> str:
        """Return the JSON response body with a user's summary; raises only RetryableError.

        The counts are complete. The list is one page of the active entitlements, and the JSON has `next_after` if there
        are more after it. An unknown user has a summary with counts of zero. Starts and ends are decided at `now`, by
        default by the database's clock (K3). `scheduled` and `expired` are absent if they are zero.
        """
        (body,) = self._database.fetch_row(SUMMARIZE, {**page._asdict(), "grace": self._grace, "now": now})
        return str(body)
