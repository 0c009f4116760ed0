"""A store in PostgreSQL, in the table `processed_messages`.

The SQL functions `processed_message_*` contain all rules, so each method is one round trip in its own transaction. A
statement is sent again after a lost connection, which is safe because the token identifies the claim.
The hourly sweep deletes a row 7 days after it has expired (R3); `cleanup` deletes expired rows immediately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import ConfigError
from grantwire_idempotency.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    truncate_error,
    validate_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from grantwire_idempotency.database import StatementRunner
    from grantwire_idempotency.stores.interface import CheckResult, Key

# Small enough for the statement timeout.
_CLEANUP_BATCH = 1_000

_CHECK = """
SELECT decision, stored_result, free_in
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

_GET_STATE = """
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
WITH deleted AS (
  DELETE FROM processed_messages WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM processed_messages
     WHERE expires_at <= coalesce(%(now)s::timestamptz, now())
     ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT count(*) FROM deleted
"""


class PostgresStore:
    """A store that all processes with the same database share. Expiry follows the clock of the database.

    Not thread-safe, because `database` is one connection. Tests set `clock`.
    """

    def __init__(self, database: StatementRunner, *, clock: Callable[[], datetime] | None = None) -> None:
        if not hasattr(database, "fetch_row"):
            raise ConfigError(["PostgresStore requires a Database"])
        self._database = database
        self._clock = clock

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """See `Store`."""
        claim = Claim(key)
        decision, result, free_in = self._database.fetch_row(_CHECK, self._parameters(claim, ttl))
        if decision == "DUPLICATE":
            return Duplicate(key, result)
        return claim if decision == "NEW" else InProgress(key, free_in)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        parameters = self._parameters(claim, ttl) | {"result": validate_result(result)}
        (completed,) = self._database.fetch_row(_COMPLETE, parameters)
        if not completed:
            raise claim_lost_error()

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._database.fetch_row(_FAIL, self._parameters(claim, ttl) | {"error": truncate_error(error)})

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        row = self._database.fetch_row(_GET_STATE, {"key": key.value, "now": self._now()})
        status, result, error, claimed_mark, completed_mark = row
        match status:
            case KeyStatus.IN_PROGRESS:
                return KeyState(KeyStatus.IN_PROGRESS, mark=claimed_mark)
            case KeyStatus.COMPLETED:
                return KeyState(KeyStatus.COMPLETED, result, error, completed_mark)
            case KeyStatus.FAILED:
                return KeyState(KeyStatus.FAILED, error=error)
        return None

    def cleanup(self) -> int:
        """See `Store`. Deletes up to 1,000 rows, oldest first; call it again while it returns 1,000."""
        (count,) = self._database.fetch_row(_CLEANUP, {"now": self._now(), "limit": _CLEANUP_BATCH})
        return int(count)

    def _parameters(self, claim: Claim, ttl: timedelta) -> dict[str, Any]:
        key = claim.key
        return {
            "key": key.value,
            "token": claim.token,
            "mark": key.mark,
            "message_id": key.message_id or key.value,
            "message_type": key.message_type,
            "ttl": clamp_ttl(ttl),
            "now": self._now(),
        }

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock()
