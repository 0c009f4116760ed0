"""Connections for stores, locks and guards: from a DSN, a psycopg connection or a pool of psycopg_pool.

    "postgresql://…"          one connection, opened on first use, reopened when it is lost and after a fork. Threads
                              take turns.
    psycopg.Connection        the user's connection. Threads take turns; another process gets an error.
    ConnectionPool            as many connections as the pool has. Another process gets an error.
    an object with fetch_row  a StatementRunner, such as the service's Database. It must be safe in threads itself.

After a fork, two processes would read each other's responses from the same socket. So a connection is never used in
another process than the one that opened it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from grantwire_idempotency.errors import AmbiguousError, ConfigError, InternalError
from grantwire_idempotency.forks import watch_forks
from grantwire_idempotency.logs import logger as default_logger
from grantwire_idempotency.postgres.errors import convert_error
from grantwire_idempotency.postgres.transactions import Transaction, require_idle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import LiteralString

    from grantwire_idempotency.database import AsyncStatementRunner, StatementRunner, TransactionRunner
    from grantwire_idempotency.logs import LibraryLogger

    Connection = psycopg.Connection[tuple[Any, ...]]
    AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]

_FORKED = (
    "this {kind} was opened by another process, whose responses it would read: open it after the fork, or pass a DSN"
)
# Parameters of a connection that the DSN does not set: no wait is longer than that.
_TIMEOUTS = {"connect_timeout": 2, "tcp_user_timeout": 5_000}
# Connections of the process that forked this one: kept, because closing them would end its sessions.
_FOREIGN: list[Any] = []


class ConnectionPool(Protocol):
    """The method of `psycopg_pool.ConnectionPool` that the library calls."""

    def connection(self) -> AbstractContextManager[Connection]:
        """Lend a connection."""


class AsyncConnectionPool(Protocol):
    """The method of `psycopg_pool.AsyncConnectionPool` that the library calls."""

    def connection(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Lend a connection."""


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
            except psycopg.Error:
                if not connection.autocommit and not connection.closed:
                    connection.rollback()
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
    """Runs statements on asynchronous connections of a source."""

    def __init__(
        self,
        lend: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        logger: LibraryLogger,
        source: _AsyncDsnSource | None = None,
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

    async def _fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        async with self._lend() as connection:
            require_idle(connection)
            try:
                cursor = await connection.cursor(row_factory=tuple_row).execute(statement, parameters)
                row = await cursor.fetchone()
                if not connection.autocommit:
                    await connection.commit()
            except psycopg.Error:
                if not connection.autocommit and not connection.closed:
                    await connection.rollback()
                raise
        return _require_row(row)


class _DsnSource:
    """One connection for each process; threads take turns."""

    def __init__(self, dsn: str) -> None:
        self._dsn = _complete(dsn)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        watch_forks(self)

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        _FOREIGN.append(self._connection)
        self._lock, self._connection = threading.Lock(), None

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.Connection.connect(self._dsn, autocommit=True)
            yield self._connection

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


class _AsyncDsnSource:
    """One connection for each process and event loop; tasks take turns."""

    def __init__(self, dsn: str) -> None:
        self._dsn = _complete(dsn)
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection | None = None

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._owner != owner:
            _FOREIGN.append(self._connection)
            self._lock, self._connection, self._owner = asyncio.Lock(), None, owner
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
            yield self._connection

    async def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        async with self._lock:
            if self._connection is not None:
                await self._connection.close()
            self._connection = None


class _ConnectionSource:
    """A connection of the user; threads take turns."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        _require_process(self._pid, "connection")
        with self._lock:
            yield self._connection


class _AsyncConnectionSource:
    """An asynchronous connection of the user; tasks take turns."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        _require_process(self._pid, "connection")
        async with self._lock:
            yield self._connection


class _PoolSource:
    """A pool of the user. Its threads and connections belong to the process that opened it."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._pid = os.getpid()

    def lend(self) -> Any:
        _require_process(self._pid, "pool")
        return self._pool.connection()


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


def statement_runner(database: object, part: str, logger: LibraryLogger | None = None) -> StatementRunner:
    """Return a runner for the user's DSN, connection, pool or StatementRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)):
        return _LockedRunner(database)  # type: ignore[arg-type]
    return _open(database, part, logger)


def transaction_runner(database: object, part: str, logger: LibraryLogger | None = None) -> TransactionRunner:
    """Return a runner for the user's DSN, connection, pool or TransactionRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)) and callable(getattr(database, "transaction", None)):
        return database  # type: ignore[return-value]
    return _open(database, part, logger)


def async_statement_runner(database: object, part: str, logger: LibraryLogger | None = None) -> AsyncStatementRunner:
    """Return a runner for the user's DSN, AsyncConnection, AsyncConnectionPool or AsyncStatementRunner."""
    logger = default_logger if logger is None else logger
    if callable(getattr(database, "fetch_row", None)):
        return database  # type: ignore[return-value]
    if isinstance(database, str):
        source = _AsyncDsnSource(database)
        return AsyncPsycopgDatabase(source.lend, logger, source)
    if isinstance(database, psycopg.AsyncConnection):
        return AsyncPsycopgDatabase(_AsyncConnectionSource(database).lend, logger)
    if _is_pool(database, AbstractAsyncContextManager):
        return AsyncPsycopgDatabase(_PoolSource(database).lend, logger)
    raise _unknown_database(database, part, "a psycopg AsyncConnection or an AsyncConnectionPool of psycopg_pool")


def _open(database: object, part: str, logger: LibraryLogger | None) -> PsycopgDatabase:
    logger = default_logger if logger is None else logger
    if isinstance(database, str):
        source = _DsnSource(database)
        return PsycopgDatabase(source.lend, logger, source.close)
    if isinstance(database, psycopg.Connection):
        return PsycopgDatabase(_ConnectionSource(database).lend, logger)
    if _is_pool(database, AbstractContextManager):
        return PsycopgDatabase(_PoolSource(database).lend, logger)
    raise _unknown_database(database, part, "a psycopg Connection or a ConnectionPool of psycopg_pool")


def _is_pool(database: object, kind: type) -> bool:
    """Return whether this is a pool of that kind: an asynchronous pool is an asynchronous context manager."""
    return callable(getattr(database, "connection", None)) and isinstance(database, kind)


def _unknown_database(database: object, part: str, kinds: str) -> ConfigError:
    # The value itself could be a password.
    return ConfigError([f"{part} requires a DSN, {kinds}, not a {type(database).__name__}"])


def _complete(dsn: str) -> str:
    """Return the DSN with the timeouts that it does not set."""
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The original error contains parts of the DSN, which could be a password.
        raise ConfigError(["the DSN is not a valid connection string of PostgreSQL"]) from None
    return make_conninfo(dsn, **{name: value for name, value in _TIMEOUTS.items() if name not in parameters})


def _require_process(pid: int, kind: str) -> None:
    if pid != os.getpid():
        raise InternalError(_FORKED.format(kind=kind))


def _require_row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise InternalError("the statement must return a row, but returned none")
    return row


def _is_lost(error: psycopg.OperationalError) -> bool:
    """Return whether the server closed the connection, or a broken one was used: a new one may work."""
    return error.sqlstate is None or error.sqlstate in ("57P01", "57P02")
