"""Chooses what runs the statements or transactions of a part: what the user passes, or a database on it (C16, C17).

A DSN, a psycopg connection or a pool: see `sources`. An object with `fetch_row` is a StatementRunner, such as the
service's Database, and with `transaction` a TransactionRunner. Threads take turns on a StatementRunner; a
TransactionRunner must be safe in threads itself. `NoDatabase` is for a guard that only works in transactions of its
callers.
"""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.forks import watch_forks
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import duration_rule, require
from grantwire_idempotency._internal.postgres.databases import AsyncPsycopgDatabase, PsycopgDatabase
from grantwire_idempotency._internal.postgres.sources import (
    AsyncConnectionSource,
    AsyncDsnSource,
    AsyncPoolSource,
    ConnectionSource,
    DsnSource,
    PoolSource,
)
from grantwire_idempotency._internal.postgres.transactions import TransactionLimits
from grantwire_idempotency.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import LiteralString, NoReturn

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.postgres.protocols import (
        AsyncStatementRunner,
        AsyncTransactionRunner,
        StatementRunner,
        TransactionRunner,
    )


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


class NoDatabase:
    """Stands for the database of a guard that has none. None itself is refused: it may be a setting that is missing."""

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> NoReturn:
        """Do the same as `transaction`."""
        self.transaction(statement, parameters)

    def transaction(self, _first: LiteralString, _parameters: Mapping[str, Any], /) -> NoReturn:
        """Raise InternalError."""
        raise InternalError("this guard has no database: `run` needs one; create the guard with a DSN or a pool")


NO_DATABASE: Any = NoDatabase()


def statement_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> StatementRunner:
    """Return a runner for the user's DSN, connection, pool or StatementRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)):
        return _LockedRunner(database)  # type: ignore[arg-type]
    return _open(database, part, logger, timeout, transactions=False)


def transaction_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> TransactionRunner:
    """Return a runner for the user's DSN, connection, pool or TransactionRunner; `part` names it in the error."""
    if callable(getattr(database, "fetch_row", None)) and callable(getattr(database, "transaction", None)):
        return database  # type: ignore[return-value]
    return _open(database, part, logger, timeout, transactions=True)


def async_statement_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> AsyncStatementRunner:
    """Return a runner for the user's DSN, AsyncConnection, AsyncConnectionPool or AsyncStatementRunner."""
    if callable(getattr(database, "fetch_row", None)):
        return database  # type: ignore[return-value]
    return _open_async(database, part, logger, timeout, transactions=False)


def async_transaction_runner(
    database: object, part: str, logger: LibraryLogger | None = None, timeout: timedelta = DEFAULT_TIMEOUT
) -> AsyncTransactionRunner:
    """Return a runner for the user's DSN, AsyncConnection, AsyncConnectionPool or AsyncTransactionRunner."""
    if callable(getattr(database, "fetch_row", None)) and callable(getattr(database, "transaction", None)):
        return database  # type: ignore[return-value]
    return _open_async(database, part, logger, timeout, transactions=True)


def _open(
    database: object, part: str, logger: LibraryLogger | None, timeout: timedelta, *, transactions: bool
) -> PsycopgDatabase:
    require(duration_rule("timeout", timeout))
    logger = default_logger if logger is None else logger
    limits = TransactionLimits.create(timeout, is_own=isinstance(database, str))
    if isinstance(database, str):
        source = DsnSource(database, None if transactions else timeout)
        return PsycopgDatabase(source.lend, logger, limits, source.close)
    if isinstance(database, psycopg.Connection):
        source_of_user = ConnectionSource(database, requires_autocommit=transactions)
        return PsycopgDatabase(source_of_user.lend, logger, limits)
    if _is_pool(database, AbstractContextManager):
        return PsycopgDatabase(PoolSource(database, logger).lend, logger, limits)
    raise _unknown_database(database, part, "a psycopg Connection or a ConnectionPool of psycopg_pool")


def _open_async(
    database: object, part: str, logger: LibraryLogger | None, timeout: timedelta, *, transactions: bool
) -> AsyncPsycopgDatabase:
    require(duration_rule("timeout", timeout))
    logger = default_logger if logger is None else logger
    limits = TransactionLimits.create(timeout, is_own=isinstance(database, str))
    if isinstance(database, str):
        source = AsyncDsnSource(database, None if transactions else timeout)
        return AsyncPsycopgDatabase(source.lend, logger, limits, source)
    if isinstance(database, psycopg.AsyncConnection):
        source_of_user = AsyncConnectionSource(database, requires_autocommit=transactions)
        return AsyncPsycopgDatabase(source_of_user.lend, logger, limits)
    if _is_pool(database, AbstractAsyncContextManager):
        return AsyncPsycopgDatabase(AsyncPoolSource(database, logger).lend, logger, limits)
    raise _unknown_database(database, part, "a psycopg AsyncConnection or an AsyncConnectionPool of psycopg_pool")


def _is_pool(database: object, kind: type) -> bool:
    """Return whether this is a pool of that kind: an asynchronous pool is an asynchronous context manager.

    A session of SQLAlchemy has the same method.
    """
    is_session = hasattr(database, "get_bind")
    return not is_session and callable(getattr(database, "connection", None)) and isinstance(database, kind)


def _unknown_database(database: object, part: str, kinds: str) -> ConfigError:
    # The value itself could be a password.
    return ConfigError([f"{part} requires a DSN, {kinds}, not a {type(database).__name__}"])
