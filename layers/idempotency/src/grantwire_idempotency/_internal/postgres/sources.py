"""Sources of connections: a DSN, a connection of the user, or a pool of the user (C16, C17).

    DSN                       one connection, opened on first use, and again when it is lost and after a fork. Threads
                              take turns.
    psycopg.Connection        the user's connection. Threads take turns; another process gets an error. A guard requires
                              autocommit mode: otherwise other code, such as Django or SQLAlchemy, may have begun a
                              transaction, which the guard would commit. psycopg shows one only after its first
                              statement.
    ConnectionPool            as many connections as the pool has. Another process gets an error.

After a fork, two processes would read each other's responses from the same socket. So a connection is never used in
another process than the one that opened it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from grantwire_idempotency._internal.foundation.forks import watch_forks
from grantwire_idempotency._internal.foundation.shortages import BUSY
from grantwire_idempotency._internal.postgres.dsn import Dsn
from grantwire_idempotency._internal.postgres.pools import (
    AsyncPoolProbe,
    PoolProbe,
    convert_pool_error,
    is_pool_timeout,
)
from grantwire_idempotency._internal.postgres.turns import AsyncTurns, Turns
from grantwire_idempotency.errors import BusyError, InternalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

    Connection = psycopg.Connection[tuple[Any, ...]]
    AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]

_FORKED = (
    "this {kind} was opened by another process, whose responses it would read: open it after the fork, or pass a DSN"
)
_NOT_AUTOCOMMIT = (
    "the connection is not in autocommit mode, so other code may have begun a transaction, which `run` would commit:"
    " pass a DSN, a pool or a connection with autocommit=True, or use `record` or `begin` in the open transaction"
)
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


class DsnSource:
    """One connection for each process; threads take turns. `statement_timeout` is that of its session."""

    def __init__(self, dsn: str, statement_timeout: timedelta | None) -> None:
        self._dsn = Dsn(dsn, statement_timeout)
        self._turns = Turns()
        self._connection: Connection | None = None
        watch_forks(self)

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        _FOREIGN.append(self._connection)
        self._turns, self._connection = Turns(), None

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection."""
        with self._turns.take():
            if self._connection is None or self._connection.closed:
                self._connection = self._dsn.connect()
            try:
                yield self._connection
            finally:
                if self._connection.info.transaction_status != TransactionStatus.IDLE:
                    self._connection.close()  # a transaction was interrupted in the middle

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        with self._turns.take(shares_errors=False):
            if self._connection is not None:
                self._connection.close()
            self._connection = None


@dataclass(slots=True)
class _LoopConnection:
    """The connection of one event loop; its tasks take turns."""

    turns: AsyncTurns = field(default_factory=AsyncTurns)
    connection: AsyncConnection | None = None

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()
        self.connection = None


class AsyncDsnSource:
    """One connection for each process and event loop; tasks take turns.

    Several threads can have loops of their own. The next use closes the connections of loops that have ended.
    """

    def __init__(self, dsn: str, statement_timeout: timedelta | None) -> None:
        self._dsn = Dsn(dsn, statement_timeout)
        self._lock = threading.Lock()
        self._connections: dict[asyncio.AbstractEventLoop, _LoopConnection] = {}
        watch_forks(self)

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        _FOREIGN.append(self._connections)
        self._lock, self._connections = threading.Lock(), {}

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection."""
        await self._close_ended()
        with self._lock:
            own = self._connections.setdefault(asyncio.get_running_loop(), _LoopConnection())
        async with own.turns.take():
            if own.connection is None or own.connection.closed:
                own.connection = await self._dsn.connect_async()
            try:
                yield own.connection
            finally:
                if own.connection.info.transaction_status != TransactionStatus.IDLE:
                    await own.connection.close()  # a transaction was interrupted in the middle

    async def close(self) -> None:
        """Close the connection of this event loop; the next use opens a new one."""
        await self._close_ended()
        with self._lock:
            own = self._connections.pop(asyncio.get_running_loop(), None)
        if own is not None:
            async with own.turns.take(shares_errors=False):
                await own.close()

    async def _close_ended(self) -> None:
        with self._lock:
            ended = [self._connections.pop(loop) for loop in list(self._connections) if loop.is_closed()]
        for connection in ended:
            await connection.close()


class ConnectionSource:
    """A connection of the user; threads take turns."""

    def __init__(self, connection: Connection, *, requires_autocommit: bool) -> None:
        self._connection = connection
        self._requires_autocommit = requires_autocommit
        self._pid = os.getpid()
        self._turns = Turns()

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection."""
        _require_process(self._pid, "connection")
        with self._turns.take():
            if self._requires_autocommit:
                _require_autocommit(self._connection)
            yield self._connection


class AsyncConnectionSource:
    """An asynchronous connection of the user; tasks take turns."""

    def __init__(self, connection: AsyncConnection, *, requires_autocommit: bool) -> None:
        self._connection = connection
        self._requires_autocommit = requires_autocommit
        self._pid = os.getpid()
        self._turns = AsyncTurns()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection."""
        _require_process(self._pid, "connection")
        async with self._turns.take():
            if self._requires_autocommit:
                _require_autocommit(self._connection)
            yield self._connection


class PoolSource:
    """A pool of the user. Its threads and connections belong to the process that opened it."""

    def __init__(self, pool: Any, logger: LibraryLogger) -> None:
        self._pool: ConnectionPool = pool
        self._pid = os.getpid()
        self._logger = logger
        self._probe = PoolProbe(pool)

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection. Raises BusyError if all are lent for longer than the pool waits."""
        _require_process(self._pid, "pool")
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._pool.connection())
            except psycopg.OperationalError as error:
                refusal = self._probe.refusal() if is_pool_timeout(error) else error
                if refusal is None:
                    raise BusyError(BUSY) from error
                raise convert_pool_error(refusal, self._logger) from error
            yield connection


class AsyncPoolSource:
    """An asynchronous pool of the user."""

    def __init__(self, pool: Any, logger: LibraryLogger) -> None:
        self._pool: AsyncConnectionPool = pool
        self._pid = os.getpid()
        self._logger = logger
        self._probe = AsyncPoolProbe(pool)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection; see `PoolSource.lend`."""
        _require_process(self._pid, "pool")
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._pool.connection())
            except psycopg.OperationalError as error:
                refusal = await self._probe.refusal() if is_pool_timeout(error) else error
                if refusal is None:
                    raise BusyError(BUSY) from error
                raise convert_pool_error(refusal, self._logger) from error
            yield connection


def _require_autocommit(connection: Connection | AsyncConnection) -> None:
    if not connection.closed and not connection.autocommit:
        raise InternalError(_NOT_AUTOCOMMIT)


def _require_process(pid: int, kind: str) -> None:
    if pid != os.getpid():
        raise InternalError(_FORKED.format(kind=kind))
