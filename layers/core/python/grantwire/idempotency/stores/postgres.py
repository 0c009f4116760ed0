"""A store in PostgreSQL, in the table `processed_messages`: for whoever has the database anyway.

Every rule stands in SQL functions (processed_message_*.sql), so that each method is one round trip in a
transaction of its own. After a lost connection it is sent once more, which is harmless: a claim is known by its token.
What has expired is deleted by the hourly sweep, 7 days later (R3), or at once by `cleanup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire.errors import ConfigError
from grantwire.idempotency.stores.interface import (
    Duplicate,
    InProgress,
    New,
    Record,
    Status,
    lifetime,
    storable_error,
    storable_result,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from grantwire.database import Database
    from grantwire.idempotency.stores.interface import Check, Key

# Deletes what fits well within the statement timeout, and passes over what somebody is at.
_CLEANUP_BATCH = 1_000

_CHECK = """
SELECT verdict, stored_result, free_in
  FROM processed_message_check(%(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(ttl)s, %(now)s)
"""

_COMPLETE = """
SELECT processed_message_complete(
         %(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(result)s, %(ttl)s, %(now)s)
"""

_FAIL = """
SELECT processed_message_fail(
         %(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(error)s, %(ttl)s, %(now)s)
"""

_LOOK = """
SELECT CASE WHEN m.claimed_until > t.moment THEN 'processing'
            WHEN m.completed_until > t.moment THEN 'completed'
            WHEN m.failed_until > t.moment THEN 'failed' END,
       m.result,
       CASE WHEN m.failed_until > t.moment THEN m.error END,
       m.claimed_mark,
       m.completed_mark
  FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS moment) t
  LEFT JOIN processed_messages m ON m.idempotency_key = %(key)s
"""

_CLEANUP = """
WITH gone AS (
  DELETE FROM processed_messages WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM processed_messages
     WHERE expires_at <= coalesce(%(now)s::timestamptz, now())
     ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT count(*) FROM gone
"""


class PostgresStore:
    """Keeps every promise of a store for all processes of one database; time is the database's.

    As its `database`, which is one connection, it serves one thread at a time. `clock` is for tests.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime] | None = None) -> None:
        if not hasattr(database, "fetch_row"):
            raise ConfigError(["PostgresStore needs a Database"])
        self._database = database
        self._clock = clock

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        claim = New(key)
        verdict, result, free_in = self._database.fetch_row(_CHECK, self._parameters(claim, ttl))
        if verdict == "DUPLICATE":
            return Duplicate(key, result)
        return claim if verdict == "NEW" else InProgress(key, free_in)

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        parameters = self._parameters(claim, ttl) | {"result": storable_result(result)}
        (completed,) = self._database.fetch_row(_COMPLETE, parameters)
        if not completed:
            raise taken()

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._database.fetch_row(_FAIL, self._parameters(claim, ttl) | {"error": storable_error(error)})

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        row = self._database.fetch_row(_LOOK, {"key": key.value, "now": self._now()})
        status, result, error, claimed_mark, completed_mark = row
        match status:
            case Status.IN_PROGRESS:
                return Record(Status.IN_PROGRESS, mark=claimed_mark)
            case Status.COMPLETED:
                return Record(Status.COMPLETED, result, error, completed_mark)
            case Status.FAILED:
                return Record(Status.FAILED, error=error)
        return None

    def cleanup(self) -> int:
        """See `Store`; the oldest first, up to 1,000 rows: call it again while it finds that many."""
        (count,) = self._database.fetch_row(_CLEANUP, {"now": self._now(), "limit": _CLEANUP_BATCH})
        return int(count)

    def _parameters(self, claim: New, ttl: timedelta) -> dict[str, Any]:
        key = claim.key
        return {
            "key": key.value,
            "token": claim.token,
            "mark": key.mark,
            "message_id": key.message_id or key.value,
            "message_type": key.message_type,
            "ttl": lifetime(ttl),
            "now": self._now(),
        }

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock()
