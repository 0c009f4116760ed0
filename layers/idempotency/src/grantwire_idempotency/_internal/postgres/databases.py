"""Databases that run the library's statements and transactions, on what the user passes (C16, C17).

A DSN, a psycopg connection or a pool: see `sources`. An object with `fetch_row` is a StatementRunner, such as the
service's Database, and with `transaction` a TransactionRunner. Threads take turns on a StatementRunner; a
TransactionRunner must be safe in threads itself.
"""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.forks import watch_forks
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import duration_rule, require
from grantwire_idempotency._internal.postgres.errors import convert_error
from grantwire_idempotency._internal.postgres.interruptions import recover
from grantwire_idempotency._internal.postgres.sources import (
    AsyncConnectionSource,
    AsyncDsnSource,
    AsyncPoolSource,
    ConnectionSource,
    DsnSource,
    PoolSource,
)
from grantwire_idempotency._internal.postgres.transactions import (
    AsyncTransaction,
    Transaction,
    require_idle,
    roll_back,
    roll_back_async,
)
from grantwire_idempotency.errors import AmbiguousError, ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from datetime import timedelta
    from typing import LiteralString

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.postgres.protocols import (
        AsyncStatementRunner,
        AsyncTransactionRunner,
        StatementRunner,
        TransactionRunner,
    )
    from grantwire_idempotency._internal.postgres.sources import AsyncConnection, Connection


class PsycopgDatabase:
    """Runs statements and transactions on connections of a source; safe in threads and after a fork."""

    def __init__(
        self,
        lend: Callable[[], AbstractContextManager[Connection]],
        logger: LibraryLogger,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._lend = lend
        self._logger = logger
        # Closes the connection that the library opened, and no connection of the user.
        self.close = close

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `StatementRunner`."""
        try:
            return self._repeat_if_lost(lambda: self._fetch_row(statement, parameters))
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @contextmanager
    def transaction(self, first: LiteralString, parameters: Mapping[str, Any], /) -> Iterator[Transaction]:
        """See `TransactionRunner`."""
        try:
            with self._begin(first, parameters) as transaction:
                yield transaction
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @contextmanager
    def _begin(self, first: LiteralString, parameters: Mapping[str, Any]) -> Iterator[Transaction]:
        """Open the transaction, once more over a new connection if the first one was lost."""
        for is_last in (False, True):
            with self._lend() as connection:
                try:
                    transaction = Transaction.begin(connection, first, parameters)
                except psycopg.OperationalError:
                    if is_last or not connection.closed:
                        raise
                    continue
                try:
                    yield transaction
                except AmbiguousError:
                    connection.close()
                    raise
                finally:
                    transaction.roll_back()
                return

    def _fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        with self._lend() as connection:
            require_idle(connection)
            try:
                row = connection.cursor(row_factory=tuple_row).execute(statement, parameters).fetchone()
                if not connection.autocommit:
                    connection.commit()
            except BaseException:
                recover(connection)
                if not connection.autocommit:
                    roll_back(connection)
                raise
        return _require_row(row)

    def _repeat_if_lost(self, action: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        try:
            return action()
        except psycopg.OperationalError as error:
            if not _is_lost(error):
                raise
        return action()


class AsyncPsycopgDatabase:
    """Runs statements and transactions on asynchronous connections of a source."""

    def __init__(
        self,
        lend: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        logger: LibraryLogger,
        source: AsyncDsnSource | None = None,
    ) -> None:
        self._lend = lend
        self._logger = logger
        self._source = source

    async def close(self) -> None:
        """Close the connection that the library opened, and no connection of the user."""
        if self._source is not None:
            await self._source.close()

    async def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `AsyncStatementRunner`."""
        try:
            try:
                return await self._fetch_row(statement, parameters)
            except psycopg.OperationalError as error:
                if not _is_lost(error):
                    raise
            return await self._fetch_row(statement, parameters)
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @asynccontextmanager
    async def transaction(
        self, first: LiteralString, parameters: Mapping[str, Any], /
    ) -> AsyncIterator[AsyncTransaction]:
        """See `AsyncTransactionRunner`."""
        try:
            async with self._begin(first, parameters) as transaction:
                yield transaction
        except psycopg.Error as error:
            raise convert_error(error, self._logger) from error

    @asynccontextmanager
    async def _begin(self, first: LiteralString, parameters: Mapping[str, Any]) -> AsyncIterator[AsyncTransaction]:
        """Open the transaction, once more over a new connection if the first one was lost."""
        for is_last in (False, True):
            async with self._lend() as connection:
                try:
                    transaction = await AsyncTransaction.begin(connection, first, parameters)
                except psycopg.OperationalError:
                    if is_last or not connection.closed:
                        raise
                    continue
                try:
                    yield transaction
                except AmbiguousError:
                    await connection.close()
                    raise
                finally:
                    await transaction.roll_back()
                return

    async def _fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        async with self._lend() as connection:
            require_idle(connection)
            try:
                cursor = await connection.cursor(row_factory=tuple_row).execute(statement, parameters)
                row = await cursor.fetchone()
                if not connection.autocommit:
                    await connection.commit()
            except BaseException:
                if not connection.autocommit:
                    await roll_back_async(connection)
                raise
        return _require_row(row)


class _LockedRunner:
    """A StatementRunner of the user, one thread at a time."""

    def __init__(self, runner: StatementRunner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        watch_forks(self)

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        self._lock = threading.Lock()

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        with self._lock:
            return self._runner.fetch_row(statement, parameters)


def statement_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> StatementRunner:
    """Return a runner for the user's DSN, connection, pool or StatementRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)):
        return _LockedRunner(database)  # type: ignore[arg-type]
    return _open(database, part, logger, timeout)


def transaction_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> TransactionRunner:
    """Return a runner for the user's DSN, connection, pool or TransactionRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)) and callable(getattr(database, "transaction", None)):
        return database  # type: ignore[return-value]
    return _open(database, part, logger, timeout)


def async_statement_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> AsyncStatementRunner:
    """Return a runner for the user's DSN, AsyncConnection, AsyncConnectionPool or AsyncStatementRunner."""
    if callable(getattr(database, "fetch_row", None)):
        return database  # type: ignore[return-value]
    return _open_async(database, part, logger, timeout)


def async_transaction_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> AsyncTransactionRunner:
    """Return a runner for the user's DSN, AsyncConnection, AsyncConnectionPool or AsyncTransactionRunner."""
    if callable(getattr(database, "fetch_row", None)) and callable(getattr(database, "transaction", None)):
        return database  # type: ignore[return-value]
    return _open_async(database, part, logger, timeout)


def _open(database: object, part: str, logger: LibraryLogger | None, timeout: timedelta) -> PsycopgDatabase:
    require(duration_rule("timeout", timeout))
    logger = default_logger if logger is None else logger
    if isinstance(database, str):
        source = DsnSource(database, timeout.total_seconds())
        return PsycopgDatabase(source.lend, logger, source.close)
    if isinstance(database, psycopg.Connection):
        return PsycopgDatabase(ConnectionSource(database).lend, logger)
    if _is_pool(database, AbstractContextManager):
        return PsycopgDatabase(PoolSource(database, logger).lend, logger)
    raise _unknown_database(database, part, "a psycopg Connection or a ConnectionPool of psycopg_pool")


def _open_async(database: object, part: str, logger: LibraryLogger | None, timeout: timedelta) -> AsyncPsycopgDatabase:
    require(duration_rule("timeout", timeout))
    logger = default_logger if logger is None else logger
    if isinstance(database, str):
        source = AsyncDsnSource(database, timeout.total_seconds())
        return AsyncPsycopgDatabase(source.lend, logger, source)
    if isinstance(database, psycopg.AsyncConnection):
        return AsyncPsycopgDatabase(AsyncConnectionSource(database).lend, logger)
    if _is_pool(database, AbstractAsyncContextManager):
        return AsyncPsycopgDatabase(AsyncPoolSource(database, logger).lend, logger)
    raise _unknown_database(database, part, "a psycopg AsyncConnection or an AsyncConnectionPool of psycopg_pool")


def _is_pool(database: object, kind: type) -> bool:
    """Return whether this is a pool of that kind: an asynchronous pool is an asynchronous context manager."""
    return callable(getattr(database, "connection", None)) and isinstance(database, kind)


def _unknown_database(database: object, part: str, kinds: str) -> ConfigError:
    # The value itself could be a password.
    return ConfigError([f"{part} requires a DSN, {kinds}, not a {type(database).__name__}"])


def _require_row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise InternalError("the statement must return a row, but returned none")
    return row


def _is_lost(error: psycopg.OperationalError) -> bool:
    """Return whether the server closed the connection, or a broken one was used: a new one may work."""
    return error.sqlstate is None or error.sqlstate in ("57P01", "57P02")
