"""The statements of `PostgresStore`, with their parameters and responses: the part that does not depend on asyncio.

The SQL functions `processed_message_*` contain all rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.stores.interface import (
    CLEANUP_BATCH,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    completion_ttl,
    new_claim,
    truncate_error,
    validate_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import LiteralString

    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim, Key

_CHECK = """
SELECT decision, stored_result, free_in, fence, last_error, stored_hash
  FROM processed_message_check(
         %(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(ttl)s, %(now)s, %(content_hash)s)
"""

_COMPLETE = """
SELECT processed_message_complete(
         %(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(result)s, %(ttl)s, %(result_ttl)s, %(now)s)
"""

_FAIL = """
SELECT processed_message_fail(
         %(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(error)s, %(ttl)s, %(now)s)
"""

_EXTEND = """
WITH extended AS (
  UPDATE processed_messages AS m
     SET claimed_until = t.moment + %(ttl)s,
         expires_at    = greatest(t.moment + %(ttl)s, m.completed_until, m.failed_until),
         updated_at    = t.moment
    FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS moment) t
   WHERE m.idempotency_key = %(key)s AND m.claimed_by = %(token)s AND m.claimed_until > t.moment
  RETURNING 1)
SELECT EXISTS (SELECT FROM extended)
"""

_GET_STATE = """
SELECT CASE WHEN m.claimed_until > t.moment THEN 'processing'
            WHEN m.completed_until > t.moment THEN 'completed'
            WHEN m.failed_until > t.moment THEN 'failed' END,
       CASE WHEN coalesce(m.result_until, m.completed_until) > t.moment THEN m.result END,
       CASE WHEN m.failed_until > t.moment THEN m.error END,
       m.claimed_mark,
       m.completed_mark,
       m.claimed_hash,
       m.completed_hash
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

# A row with a live claim keeps its claim: a run is working on a later mark.
_DELETE_COMPLETED = """
WITH deleted AS (
  DELETE FROM processed_messages m
   USING (SELECT coalesce(%(now)s::timestamptz, now()) AS moment) t
   WHERE m.completed_by IS NOT NULL AND m.completed_at < t.moment - %(age)s
     AND coalesce(m.claimed_until <= t.moment, true)
  RETURNING 1)
SELECT count(*) FROM deleted
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement with its parameters, and the function that reads its row."""

    statement: LiteralString
    parameters: dict[str, Any]
    parse: Callable[[tuple[Any, ...]], Any]


class Queries:
    """The queries of a store: the part that does not depend on asyncio."""

    def __init__(self, clock: Callable[[], datetime] | None) -> None:
        self._clock = clock

    def check(self, key: Key, ttl: timedelta, token: str | None) -> Query:
        """Return the query that decides whether the key is new, and claims it then."""
        claim = new_claim(key, token)

        def parse(row: tuple[Any, ...]) -> CheckResult:
            decision, result, free_in, fence, last_error, stored_hash = row
            if decision == "NEW":
                return replace(claim, fence=fence, last_error=last_error)
            content_hash = stored_hash or ""
            if decision == "DUPLICATE":
                return Duplicate(key, result, content_hash)
            return InProgress(key, free_in, content_hash)

        parameters = self._parameters(claim, clamp_ttl(ttl)) | {"content_hash": key.content_hash or None}
        return Query(_CHECK, parameters, parse)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None) -> Query:
        """Return the query that completes a claim."""
        parameters = self._parameters(claim, completion_ttl(claim.key, ttl, order_ttl))
        parameters |= {"result": validate_result(result), "result_ttl": clamp_ttl(ttl)}
        return Query(_COMPLETE, parameters, _require_claim)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> Query:
        """Return the query that releases the key."""
        parameters = self._parameters(claim, clamp_ttl(ttl)) | {"error": truncate_error(error)}
        return Query(_FAIL, parameters, lambda _row: None)

    def extend(self, claim: Claim, ttl: timedelta) -> Query:
        """Return the query that lets the claim expire later."""
        return Query(_EXTEND, self._parameters(claim, clamp_ttl(ttl)), _require_claim)

    def get_result(self, key: Key) -> Query:
        """Return the query that reads the state of the key."""
        return Query(_GET_STATE, {"key": key.value, "now": self._now()}, _parse_state)

    def cleanup(self) -> Query:
        """Return the query that deletes expired rows."""
        return Query(_CLEANUP, {"now": self._now(), "limit": CLEANUP_BATCH}, lambda row: int(row[0]))

    def delete_completed(self, age: timedelta) -> Query:
        """Return the query that deletes the completions that are older than `age`."""
        return Query(_DELETE_COMPLETED, {"now": self._now(), "age": age}, lambda row: int(row[0]))

    def _parameters(self, claim: Claim, ttl: timedelta) -> dict[str, Any]:
        key = claim.key
        return {
            "key": key.value,
            "token": claim.token,
            "mark": key.mark,
            "message_id": key.message_id or key.value,
            "message_type": key.message_type,
            "ttl": ttl,
            "now": self._now(),
        }

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock()


def _require_claim(row: tuple[Any, ...]) -> None:
    if not row[0]:
        raise claim_lost_error()


def _parse_state(row: tuple[Any, ...]) -> KeyState | None:
    status, result, error, claimed_mark, completed_mark, claimed_hash, completed_hash = row
    match status:
        case KeyStatus.IN_PROGRESS:
            return KeyState(KeyStatus.IN_PROGRESS, mark=claimed_mark, content_hash=claimed_hash or "")
        case KeyStatus.COMPLETED:
            return KeyState(KeyStatus.COMPLETED, result, error, completed_mark, completed_hash or "")
        case KeyStatus.FAILED:
            return KeyState(KeyStatus.FAILED, error=error)
    return None
