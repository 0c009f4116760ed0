"""A store in PostgreSQL, in the table `processed_messages`.

The SQL functions `processed_message_*` contain all rules, so each method is one round trip in its own transaction. A
statement is sent again after a lost connection, which is safe because the token identifies the claim.
`cleanup` deletes expired rows. `python -m grantwire_idempotency schema` prints or applies the table and the functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.optional import optional_package
from grantwire_idempotency.stores.interface import (
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

with optional_package("psycopg", used_by="PostgresStore"):
    from grantwire_idempotency.postgres.databases import (
        AsyncPsycopgDatabase,
        PsycopgDatabase,
        async_statement_runner,
        statement_runner,
    )

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import LiteralString

    from psycopg import AsyncConnection, Connection

    from grantwire_idempotency.database import AsyncStatementRunner, StatementRunner
    from grantwire_idempotency.fail_mode import FailMode
    from grantwire_idempotency.logs import LibraryLogger
    from grantwire_idempotency.postgres.sources import AsyncConnectionPool, ConnectionPool
    from grantwire_idempotency.stores.interface import CheckResult, Claim, Key

# Small enough for the statement timeout.
_CLEANUP_BATCH = 1_000

_CHECK = """
SELECT decision, stored_result, free_in, fence, last_error
  FROM processed_message_check(%(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(ttl)s, %(now)s)
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
class _Query:
    """A statement with its parameters, and the function that reads its row."""

    statement: LiteralString
    parameters: dict[str, Any]
    parse: Callable[[tuple[Any, ...]], Any]


class _Queries:
    """The queries of a store: the part that does not depend on asyncio."""

    def __init__(self, clock: Callable[[], datetime] | None) -> None:
        self._clock = clock

    def check(self, key: Key, ttl: timedelta, token: str | None) -> _Query:
        claim = new_claim(key, token)

        def parse(row: tuple[Any, ...]) -> CheckResult:
            decision, result, free_in, fence, last_error = row
            if decision == "NEW":
                return replace(claim, fence=fence, last_error=last_error)
            return Duplicate(key, result) if decision == "DUPLICATE" else InProgress(key, free_in)

        return _Query(_CHECK, self._parameters(claim, clamp_ttl(ttl)), parse)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None) -> _Query:
        parameters = self._parameters(claim, completion_ttl(claim.key, ttl, order_ttl))
        parameters |= {"result": validate_result(result), "result_ttl": clamp_ttl(ttl)}
        return _Query(_COMPLETE, parameters, _require_claim)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> _Query:
        parameters = self._parameters(claim, clamp_ttl(ttl)) | {"error": truncate_error(error)}
        return _Query(_FAIL, parameters, lambda _row: None)

    def extend(self, claim: Claim, ttl: timedelta) -> _Query:
        return _Query(_EXTEND, self._parameters(claim, clamp_ttl(ttl)), _require_claim)

    def get_result(self, key: Key) -> _Query:
        return _Query(_GET_STATE, {"key": key.value, "now": self._now()}, _parse_state)

    def cleanup(self) -> _Query:
        return _Query(_CLEANUP, {"now": self._now(), "limit": _CLEANUP_BATCH}, lambda row: int(row[0]))

    def delete_completed(self, age: timedelta) -> _Query:
        return _Query(_DELETE_COMPLETED, {"now": self._now(), "age": age}, lambda row: int(row[0]))

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


class PostgresStore:
    """A store that all processes with the same database share. Expiry follows the clock of the database.

    `database` is a DSN, a psycopg connection, a pool of psycopg_pool, or an object with the methods of StatementRunner.
    Safe in threads, which take turns on a single connection: pass a pool if they should not. Tests set `clock`.
    """

    def __init__(
        self,
        database: str | Connection[Any] | ConnectionPool | StatementRunner,
        *,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.fail_mode = fail_mode
        self._database = statement_runner(database, "PostgresStore", logger)
        self._queries = _Queries(clock)

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return self._run(self._queries.check(key, ttl, token))  # type: ignore[no-any-return]

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._run(self._queries.store_result(claim, result, ttl, order_ttl))

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._run(self._queries.store_failure(claim, error, ttl))

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._run(self._queries.extend(claim, ttl))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return self._run(self._queries.get_result(key))  # type: ignore[no-any-return]

    def cleanup(self) -> int:
        """See `Store`. Deletes up to 1,000 rows, oldest first; call it again while it returns 1,000."""
        return self._run(self._queries.cleanup())  # type: ignore[no-any-return]

    def delete_completed(self, age: timedelta) -> int:
        """Delete the completions that are older than `age`, live or not, and return how many were deleted."""
        return self._run(self._queries.delete_completed(age))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, PsycopgDatabase):
            self._database.close()

    def _run(self, query: _Query) -> Any:
        return query.parse(self._database.fetch_row(query.statement, query.parameters))


class AsyncPostgresStore:
    """A `PostgresStore` for asyncio.

    `database` is a DSN, a psycopg AsyncConnection, an AsyncConnectionPool of psycopg_pool, or an object with the
    methods of AsyncStatementRunner. Tasks take turns on a single connection: pass a pool if they should not.
    """

    def __init__(
        self,
        database: str | AsyncConnection[Any] | AsyncConnectionPool | AsyncStatementRunner,
        *,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.fail_mode = fail_mode
        self._database = async_statement_runner(database, "AsyncPostgresStore", logger)
        self._queries = _Queries(clock)

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return await self._run(self._queries.check(key, ttl, token))  # type: ignore[no-any-return]

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        await self._run(self._queries.store_result(claim, result, ttl, order_ttl))

    async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        await self._run(self._queries.store_failure(claim, error, ttl))

    async def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        await self._run(self._queries.extend(claim, ttl))

    async def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return await self._run(self._queries.get_result(key))  # type: ignore[no-any-return]

    async def cleanup(self) -> int:
        """See `PostgresStore`."""
        return await self._run(self._queries.cleanup())  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, AsyncPsycopgDatabase):
            await self._database.close()

    async def _run(self, query: _Query) -> Any:
        return query.parse(await self._database.fetch_row(query.statement, query.parameters))


def _require_claim(row: tuple[Any, ...]) -> None:
    if not row[0]:
        raise claim_lost_error()


def _parse_state(row: tuple[Any, ...]) -> KeyState | None:
    status, result, error, claimed_mark, completed_mark = row
    match status:
        case KeyStatus.IN_PROGRESS:
            return KeyState(KeyStatus.IN_PROGRESS, mark=claimed_mark)
        case KeyStatus.COMPLETED:
            return KeyState(KeyStatus.COMPLETED, result, error, completed_mark)
        case KeyStatus.FAILED:
            return KeyState(KeyStatus.FAILED, error=error)
    return None
