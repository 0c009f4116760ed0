"""SQL statements that check entitlements: one now, many now, and one as of a past time.

The SQL function entitlement_check describes the result of each, with PostgreSQL's clock (K1 to K3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from grantwire.errors import BadRequestError
from grantwire.settings import duration, setting

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire.database import Database
    from grantwire.entitlements.read_requests import CheckRequest, ChecksRequest
    from grantwire.entitlements.settings import TimeSettings

# One lookup by primary key. statement_timestamp() is one time for the whole statement.
CHECK = """
SELECT c.body, c.etag, c.max_age
  FROM (VALUES (%(user_id)s::text, %(sku)s::text)) AS requested (user_id, sku)
  LEFT JOIN entitlements e ON e.user_id = requested.user_id AND e.stock_keeping_unit = requested.sku
 CROSS JOIN LATERAL entitlement_check(
         requested.user_id, requested.sku, e, %(grace)s, %(cache)s, statement_timestamp()) AS c
"""

# LATERAL with LIMIT makes each check a lookup by primary key: a join could read the whole table. So every plan loops
# over the pairs in their order, and no test can show that ORDER BY is needed. It stays, because PostgreSQL promises no
# order of the input of an aggregate without it.
CHECK_MANY = """
SELECT '{"results":[' || string_agg(c.body, ',' ORDER BY requested.position) || ']}'
  FROM unnest(%(user_ids)s::text[], %(skus)s::text[]) WITH ORDINALITY AS requested (user_id, sku, position)
  LEFT JOIN LATERAL (
       SELECT e AS entitlement
         FROM entitlements e
        WHERE e.user_id = requested.user_id AND e.stock_keeping_unit = requested.sku
        LIMIT 1) AS found ON true
 CROSS JOIN LATERAL entitlement_check(
         requested.user_id, requested.sku, found.entitlement, %(grace)s, %(cache)s, statement_timestamp()) AS c
"""

# Returns a refusal instead of raising an error, because it is for the caller. There is nothing to cache: NULL.
CHECK_AT = """
SELECT past.refusal, c.body
  FROM entitlement_at(%(user_id)s, %(sku)s, %(at)s::timestamptz, statement_timestamp()) AS past
 CROSS JOIN LATERAL entitlement_check(
         %(user_id)s, %(sku)s, past.entitlement, %(grace)s, NULL, %(at)s::timestamptz) AS c
"""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How long a caller may use the result of a check without asking again."""

    # A revocation is seen at most this much later.
    check_cache: timedelta = setting("ENTITLEMENT_CHECK_CACHE", duration(low="0s", high="1h"), default="60s")


class CheckResult(NamedTuple):
    """The result of one check: JSON text, the identity of its content, and for how many seconds it may be cached."""

    body: str
    etag: str
    max_age: int


class Checks:
    """Read access to entitlements for access decisions. Raises RetryableError if PostgreSQL is unavailable."""

    def __init__(self, database: Database, times: TimeSettings, caching: CacheSettings) -> None:
        self._database = database
        self._settings = {
            "grace": times.grace_interval,
            "cache": f"{caching.check_cache.total_seconds()} seconds",
        }

    def check(self, request: CheckRequest) -> CheckResult:
        """Check one entitlement now."""
        names = {"user_id": request.user_id, "sku": request.stock_keeping_unit}
        return CheckResult._make(self._database.fetch_row(CHECK, names | self._settings))

    def check_at(self, request: CheckRequest) -> str:
        """Check one entitlement as of the past time `request.at`, and return the JSON text.

        Raises BadRequestError if that time is in the future, or before what the audit still has.
        """
        parameters = {"user_id": request.user_id, "sku": request.stock_keeping_unit, "at": request.at}
        refusal, body = self._database.fetch_row(CHECK_AT, parameters | self._settings)
        if refusal is not None:
            raise BadRequestError(str(refusal))
        return str(body)

    def check_many(self, request: ChecksRequest) -> str:
        """Check several entitlements in one round trip, at the same moment; return the JSON text, in their order."""
        names = {"user_ids": request.user_ids, "skus": request.stock_keeping_units}
        (body,) = self._database.fetch_row(CHECK_MANY, names | self._settings)
        return str(body)
