"""Statements of the library in a transaction that the caller opens and commits (C28).

    psycopg       Connection, AsyncConnection
    SQLAlchemy    Connection, Session, AsyncConnection, AsyncSession
    Django        django.db.connection, and anything else with cursors of psycopg

SQLAlchemy and Django send the statement themselves, so they begin their transaction and raise their errors as for every
other statement. They are recognised by the methods that are called here, and are never imported. The connection of
psycopg below says whether a transaction is open (ADR 0047).
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from grantwire_idempotency._internal.postgres.deadlines import limited
from grantwire_idempotency._internal.postgres.errors import convert_error, sqlstate_class
from grantwire_idempotency._internal.postgres.transactions import require_row
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager
    from typing import LiteralString

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

_NOT_OPEN = (
    "no transaction is open on this connection, so the key would be committed before the rows: call this inside"
    " `connection.transaction()`, `engine.begin()` or `atomic()`"
)
_FAILED = "the transaction has failed, and PostgreSQL refuses every statement in it: roll it back first"
_READ_ONLY = "the transaction is read-only, so the key cannot be stored: open one that may write"
_KINDS = "a psycopg Connection, a Connection or Session of SQLAlchemy, or the connection of Django"
_ASYNC_KINDS = "a psycopg AsyncConnection, or an AsyncConnection or AsyncSession of SQLAlchemy"
# Mistakes in the use of the library: a missing schema, a guard inside another one, `finish` without `begin`.
_MISTAKES = ("42", "GW")


class _Result(Protocol):
    def fetchone(self) -> Any: ...


class SqlalchemyConnection(Protocol):
    """The method of SQLAlchemy's `Connection` that the library calls."""

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> _Result:
        """Send a statement with the placeholders of the driver."""


class SqlalchemySession(Protocol):
    """The method of SQLAlchemy's `Session` that the library calls."""

    def connection(self) -> SqlalchemyConnection:
        """Return the connection of the transaction, which begins if none is open."""


class CursorConnection(Protocol):
    """The method of Django's connection that the library calls."""

    def cursor(self) -> AbstractContextManager[Any]:
        """Return a cursor of psycopg, or a wrapper of one."""


class AsyncSqlalchemyConnection(Protocol):
    """The method of SQLAlchemy's `AsyncConnection` that the library calls."""

    def exec_driver_sql(self, statement: str, parameters: Any = None, /) -> Awaitable[_Result]:
        """Send a statement with the placeholders of the driver."""


class AsyncSqlalchemySession(Protocol):
    """The method of SQLAlchemy's `AsyncSession` that the library calls."""

    def connection(self) -> Awaitable[AsyncSqlalchemyConnection]:
        """Return the connection of the transaction, which begins if none is open."""


OpenTransaction = psycopg.Connection[Any] | SqlalchemyConnection | SqlalchemySession | CursorConnection
AsyncOpenTransaction = psycopg.AsyncConnection[Any] | AsyncSqlalchemyConnection | AsyncSqlalchemySession


def fetch_in_transaction(
    connection: OpenTransaction,
    statement: LiteralString,
    parameters: Mapping[str, Any],
    seconds: float,
    logger: LibraryLogger,
) -> tuple[Any, ...]:
    """Run a statement that returns one row in the open transaction of the caller, and leave it open.

    Raises InternalError if no transaction is open, if it has failed or is read-only, and for mistakes in the use of the
    library; ConfigError if the schema is missing. Every other error is that of the connection.
    """
    driver, fetch = _resolve(connection)
    _require_open(driver, psycopg.Connection)
    try:
        with limited(driver, seconds):
            row = fetch(statement, parameters)
    except Exception as error:
        _raise_mistake(error, logger)
        raise
    return _require_writable(row)


async def fetch_in_transaction_async(
    connection: AsyncOpenTransaction,
    statement: LiteralString,
    parameters: Mapping[str, Any],
    seconds: float,
    logger: LibraryLogger,
) -> tuple[Any, ...]:
    """Do the same on an asynchronous connection."""
    driver, fetch = await _resolve_async(connection)
    _require_open(driver, psycopg.AsyncConnection)
    try:
        with limited(driver, seconds):
            row = await fetch(statement, parameters)
    except Exception as error:
        _raise_mistake(error, logger)
        raise
    return _require_writable(row)


def _resolve(connection: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the connection of the driver, and a function that returns the row of a statement."""
    if isinstance(connection, psycopg.Connection):
        return connection, partial(_fetch, connection)
    if not _is_async(connection):
        if _has(connection, "get_bind"):
            connection = connection.connection()
        if _has(connection, "exec_driver_sql"):
            return connection.connection.driver_connection, partial(_fetch_by_sqlalchemy, connection)
        if _has(connection, "cursor"):
            cursor = connection.cursor()
            return getattr(cursor, "connection", None), partial(_fetch_by_cursor, cursor)
    raise _unknown(connection, _KINDS)


async def _resolve_async(connection: Any) -> tuple[Any, Callable[..., Any]]:
    if isinstance(connection, psycopg.AsyncConnection):
        return connection, partial(_fetch_async, connection)
    if _is_async(connection):
        if _has(connection, "get_bind"):
            connection = await connection.connection()
        if _has(connection, "exec_driver_sql"):
            pooled = await connection.get_raw_connection()
            return pooled.driver_connection, partial(_fetch_by_sqlalchemy_async, connection)
    raise _unknown(connection, _ASYNC_KINDS)


def _fetch(connection: psycopg.Connection[Any], statement: LiteralString, parameters: Mapping[str, Any]) -> Any:
    return connection.cursor(row_factory=tuple_row).execute(statement, parameters, prepare=False).fetchone()


async def _fetch_async(
    connection: psycopg.AsyncConnection[Any], statement: LiteralString, parameters: Mapping[str, Any]
) -> Any:
    cursor = await connection.cursor(row_factory=tuple_row).execute(statement, parameters, prepare=False)
    return await cursor.fetchone()


def _fetch_by_sqlalchemy(connection: SqlalchemyConnection, statement: str, parameters: Mapping[str, Any]) -> Any:
    return connection.exec_driver_sql(statement, dict(parameters)).fetchone()


async def _fetch_by_sqlalchemy_async(
    connection: AsyncSqlalchemyConnection, statement: str, parameters: Mapping[str, Any]
) -> Any:
    return (await connection.exec_driver_sql(statement, dict(parameters))).fetchone()


def _fetch_by_cursor(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> Any:
    with cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()


def _has(connection: object, method: str) -> bool:
    return callable(getattr(connection, method, None))


def _is_async(connection: object) -> bool:
    """Return whether this is an asynchronous connection or session."""
    methods = (getattr(connection, name, None) for name in ("exec_driver_sql", "connection", "execute"))
    return any(inspect.iscoroutinefunction(method) for method in methods)


def _require_open(driver: Any, kind: type[Any]) -> None:
    """Raise InternalError if a statement could not be part of a transaction of the caller."""
    if not isinstance(driver, kind):
        raise InternalError(f"the driver of the connection must be psycopg 3, not {_describe(driver)}")
    status = driver.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise InternalError(_FAILED)
    if status == TransactionStatus.IDLE and driver.autocommit:
        raise InternalError(_NOT_OPEN)


def _require_writable(row: Any) -> tuple[Any, ...]:
    values = tuple(require_row(row))
    if values[0] == "READ_ONLY":
        raise InternalError(_READ_ONLY)
    return values


def _raise_mistake(error: Exception, logger: LibraryLogger) -> None:
    """Raise the library's error for a mistake in its use; SQLAlchemy and Django wrap the error of the driver."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error) and sqlstate_class(cause) in _MISTAKES:
        raise convert_error(cause, logger) from error


def _unknown(connection: object, kinds: str) -> InternalError:
    return InternalError(f"this needs an open transaction on {kinds}, not {_describe(connection)}")


def _describe(value: object) -> str:
    """Return the type of a value with its module: several libraries have a Connection."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
