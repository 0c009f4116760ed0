"""SQL statements for entitlements: one that changes an entitlement, and one that lists the entitlements of a user."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any

from grantwire.errors import BadRequestError
from grantwire.idempotency.requests import StoredResponse, raise_for_outcome
from grantwire.identifiers import uuid7_text
from grantwire.observability import key_fingerprint, logger

if TYPE_CHECKING:
    from grantwire.database import Database
    from grantwire.entitlements.commands import ChangeCommand
    from grantwire.entitlements.read_requests import ListRequest
    from grantwire.entitlements.settings import TimeSettings
    from grantwire.idempotency.requests import IdempotencySettings, RequestIdentity

# The SQL function contains all rules (infra/sql/functions/change_entitlement.sql) and returns the response as text. The
# first SELECT finds a replay by primary key, and LIMIT 1 then skips the function call. This is only an optimisation:
# the function would find the same row (I6).
CHANGE = """
SELECT 'REPLAYED', status_code, response_body
  FROM idempotency_keys
 WHERE caller = %(caller)s AND route = %(route)s AND idempotency_key = %(key)s
   AND expires_at > now() AND request_hash = %(request_hash)s
UNION ALL
SELECT outcome, status_code, body
  FROM change_entitlement(
         %(route)s, %(key)s, %(request_hash)s, %(ttl)s, %(lock_wait_ms)s::integer, %(grace)s, %(notice)s,
         json_populate_record(NULL::entitlement_change, %(change)s::json))
 LIMIT 1
"""

# The statement reads one row more than the page holds, to know whether there is a next page. PostgreSQL builds the
# JSON because that costs half as much as in Python. statement_timestamp() is one time for the whole list.
#
# The index range of a prefix ends with the largest text that begins with it. A status depends on the clock, so it has
# no index: %(examined)s limits how many entitlements are read for a page, and the next page starts after them.
LIST = """
WITH examined AS (
  SELECT stock_keeping_unit, e AS entitlement,
         entitlement_state(status, starts_at, expires_at, %(grace)s,
                           greatest(statement_timestamp(), updated_at)) AS status
    FROM entitlements e
   WHERE user_id = %(user_id)s AND stock_keeping_unit > %(after)s
     AND stock_keeping_unit BETWEEN %(prefix)s AND %(prefix)s || repeat(chr(1114111), 128)
   ORDER BY stock_keeping_unit
   LIMIT %(examined)s),
page AS (
  SELECT *, row_number() OVER (ORDER BY stock_keeping_unit) AS position
    FROM examined
   WHERE %(status)s::text IS NULL OR status = %(status)s::text
   ORDER BY stock_keeping_unit
   LIMIT %(limit)s + 1)
SELECT '{"user_id":' || to_json(%(user_id)s::text) || ',"entitlements":['
    || coalesce(string_agg(entitlement_json(entitlement, status, false, true), ',' ORDER BY position)
                FILTER (WHERE position <= %(limit)s), '')
    || ']'
    || CASE WHEN count(*) > %(limit)s
            THEN ',"next_after":' || to_json(max(stock_keeping_unit) FILTER (WHERE position <= %(limit)s))
            WHEN %(status)s::text IS NOT NULL AND (SELECT count(*) FROM examined) = %(examined)s
            THEN ',"next_after":' || to_json((SELECT max(stock_keeping_unit) FROM examined))
            ELSE '' END
    || '}'
  FROM page
"""


# How many entitlements a page with a status examines.
MAX_EXAMINED = 10_000

encode = json.JSONEncoder(default=datetime.isoformat).encode


class Entitlements:
    """The entitlements in the system of record."""

    def __init__(self, database: Database, settings: IdempotencySettings, times: TimeSettings) -> None:
        self._database = database
        self._grace = times.grace_interval
        self._notice = times.notice_interval
        self._ttl = f"{settings.ttl.total_seconds()} seconds"
        self._lock_wait = str(int(settings.lock_wait.total_seconds() * 1000))

    def change(
        self,
        command: ChangeCommand,
        identity: RequestIdentity,
        trace_id: str,
        source_address: str | None = None,
        correlation_id: str | None = None,
    ) -> StoredResponse:
        """Grant, revoke or extend an entitlement, at most once for `identity.key`.

        `source_address` is the address that the request came from, `correlation_id` the id that API Gateway gave it, if
        they are known; they are kept in the audit.
        The docstring of the package states the guarantees and the errors raised.
        """
        outcome, status_code, body = self._database.fetch_row(
            CHANGE,
            {
                "caller": identity.caller,
                "route": identity.route,
                "key": identity.key,
                "request_hash": identity.request_hash,
                "ttl": self._ttl,
                "lock_wait_ms": self._lock_wait,
                "grace": self._grace,
                "notice": self._notice,
                "change": encode(change_fields(command, identity.caller, trace_id, source_address, correlation_id)),
            },
        )
        if logger.log_level <= logging.DEBUG:
            logger.debug("entitlement command executed", outcome=outcome, key=key_fingerprint(identity.key))
        return to_stored_response(outcome, status_code, body)

    def list_for_user(self, request: ListRequest) -> str:
        """Return one page of a user's entitlements, ordered by stock keeping unit, as the JSON text of the response.

        Their status is that at the time of the statement, also if no worker has recorded a start or an end yet (K3).
        The JSON has `next_after` if there are more entitlements after this page, or with a status, if there may be.
        """
        page = request.page
        parameters = {
            **page._asdict(),
            "status": request.status,
            "prefix": request.prefix,
            "examined": page.limit + 1 if request.status is None else MAX_EXAMINED,
            "grace": self._grace,
        }
        (body,) = self._database.fetch_row(LIST, parameters)
        return str(body)


def change_fields(
    command: ChangeCommand, caller: str, trace_id: str, source_address: str | None, correlation_id: str | None
) -> dict[str, Any]:
    """Return a change as the fields of the SQL type `entitlement_change`, with a new id."""
    return {
        **command._asdict(),
        "operation": command.operation.value,
        "operation_id": uuid7_text(),
        "caller": caller,
        "trace_id": trace_id,
        "source_address": source_address,
        "correlation_id": correlation_id,
    }


def to_stored_response(outcome: str, status_code: int | None, body: str | None) -> StoredResponse:
    """Return the result of `change_entitlement`; raise the error for an outcome that is not stored."""
    raise_for_outcome(outcome)
    if outcome == BadRequestError.code:
        raise BadRequestError(str(json.loads(str(body))["message"]))
    return StoredResponse(int(status_code or 0), str(body), outcome)
