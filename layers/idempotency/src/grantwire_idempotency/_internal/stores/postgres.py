"""A store in PostgreSQL, in the table `processed_messages`.

The SQL functions `processed_message_*` contain all rules, so each method is one round trip in its own transaction. A
statement is sent again after a lost connection, which is safe because the token identifies the claim.
`postgres_queries` has the statements. `cleanup` deletes expired rows. `python -m grantwire_idempotency schema` prints
or applies the table and the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.stores.postgres_queries import Queries

with optional_package("psycopg", used_by="PostgresStore"):
    from grantwire_idempotency._internal.postgres.databases import AsyncPsycopgDatabase, PsycopgDatabase
    from grantwire_idempotency._internal.postgres.runners import async_statement_runner, statement_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from psycopg import AsyncConnection, Connection

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.postgres.protocols import AsyncStatementRunner, StatementRunner
    from grantwire_idempotency._internal.postgres.sources import AsyncConnectionPool, ConnectionPool
    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim, Key, KeyState
    from grantwire_idempotency._internal.stores.postgres_queries import Query


class PostgresStore:
    """A store that all processes with the same database share. Expiry follows the clock of the database.

    `database` is a DSN, a psycopg connection, a pool of psycopg_pool, or an object with the methods of StatementRunner.
    Safe in threads, which take turns on a single connection: pass a pool if they should not. A server that does not
    respond for `timeout` is unavailable. Tests set `clock`.
    """

    def __init__(
        self,
        database: str | Connection[Any] | ConnectionPool | StatementRunner,
        *,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.fail_mode = fail_mode
        self._database = statement_runner(database, "PostgresStore", logger, timeout)
        self._queries = Queries(clock)

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

    def _run(self, query: Query) -> Any:
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
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.fail_mode = fail_mode
        self._database = async_statement_runner(database, "AsyncPostgresStore", logger, timeout)
        self._queries = Queries(clock)

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

    async def _run(self, query: Query) -> Any:
        return query.parse(await self._database.fetch_row(query.statement, query.parameters))
