"""A transaction that a guard begins with one statement and commits with another: five round trips.

Not in pipelines, which would take two. psycopg ends a pipeline with a Flush, which a pooler may read after the
transaction. PgBouncer 1.18 then gives the client a session, and takes it back only after the client's next statement.

The code between them gets the connection. It must not end the transaction. If it does, no later statement of its
cursors is executed, because PostgreSQL would commit it alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_LEASE
from grantwire_idempotency._internal.postgres.deadlines import limited
from grantwire_idempotency._internal.postgres.dsn import to_milliseconds
from grantwire_idempotency._internal.postgres.interruptions import recover
from grantwire_idempotency.errors import AmbiguousError, InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import LiteralString, Self

    Connection = psycopg.Connection[tuple[Any, ...]]
    AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]
    AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

TRANSACTION_ENDED = (
    "the guarded work has ended the transaction of its guard: it must not commit or roll back, use"
    " `connection.transaction()` for a part that may fail; nothing is stored"
)
_UNKNOWN_OUTCOME = "the outcome is unknown; repeat the request with the same key"
_NO_ROW = "the statement must return a row, but returned none"


class _GuardedCursor:
    """Part of a cursor class that executes nothing outside the transaction in which the cursor was made.

    Of an asynchronous cursor, the methods return what must be awaited.
    """

    connection: AnyConnection

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self._require_transaction()
        return super().execute(*args, **kwargs)  # type: ignore[misc]

    def executemany(self, *args: Any, **kwargs: Any) -> Any:
        self._require_transaction()
        return super().executemany(*args, **kwargs)  # type: ignore[misc]

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        self._require_transaction()
        return super().stream(*args, **kwargs)  # type: ignore[misc]

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        self._require_transaction()
        return super().copy(*args, **kwargs)  # type: ignore[misc]

    def _require_transaction(self) -> None:
        if self.connection.info.transaction_status == TransactionStatus.IDLE:
            raise InternalError(TRANSACTION_ENDED)


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Limits of the library's statements in a transaction; those of the work between them may take any time.

    `first` and `last` are sent before the first and the last statement. Both last for the transaction alone, so no
    session is changed, also behind a pooler.
    """

    seconds: float | None = None
    first: bytes | None = None
    last: bytes = b"SET LOCAL statement_timeout TO DEFAULT"
    prepare: bool | None = None

    @classmethod
    def create(cls, timeout: timedelta, *, is_own: bool) -> Self:
        """Return the limits for statements that take at most `timeout`, which are never prepared.

        On a connection that the library opened, the server also ends a transaction that a suspended process left open.
        """
        idle = f"SET LOCAL idle_in_transaction_session_timeout = {to_milliseconds(DEFAULT_LEASE)}"
        last = f"SET LOCAL statement_timeout = {to_milliseconds(timeout)}"
        return cls(timeout.total_seconds(), idle.encode() if is_own else None, last.encode(), prepare=False)

    def opening(self, connection: AnyConnection) -> bytes:
        """Return the statements before the first one. psycopg itself begins outside autocommit mode."""
        statements = (b"BEGIN" if connection.autocommit else None, self.first)
        return b"; ".join(statement for statement in statements if statement is not None)


_NO_LIMITS = TransactionLimits()


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction; `first` is the row that its first statement returned."""

    connection: Connection
    first: tuple[Any, ...]
    cursor_factory: type[psycopg.Cursor[tuple[Any, ...]]]
    limits: TransactionLimits

    @classmethod
    def begin(
        cls,
        connection: Connection,
        statement: LiteralString,
        parameters: Mapping[str, Any],
        limits: TransactionLimits = _NO_LIMITS,
    ) -> Self:
        """Begin, and execute a statement that returns one row; roll back if that fails."""
        require_idle(connection)
        prepare = limits.prepare
        with limited(connection, limits.seconds):
            try:
                if opening := limits.opening(connection):
                    connection.execute(opening, prepare=prepare)
                cursor = connection.cursor(row_factory=tuple_row).execute(statement, parameters, prepare=prepare)
                row = require_row(cursor.fetchone())
            except BaseException:
                roll_back(connection)
                raise
        return cls(connection, row, _guard_cursors(connection), limits)

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """Execute the last statement, and commit.

        Raises AmbiguousError if the connection breaks before the response, so that the outcome is unknown.
        """
        prepare = self.limits.prepare
        try:
            with limited(self.connection, self.limits.seconds):
                self.connection.execute(self.limits.last, prepare=prepare)
                self.connection.execute(statement, parameters, prepare=prepare)
                self.connection.execute("COMMIT", prepare=prepare)
        except psycopg.OperationalError as error:
            if _is_ambiguous(self.connection, error):
                raise AmbiguousError(_UNKNOWN_OUTCOME) from error
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the transaction was committed or rolled back."""
        return _has_ended(self.connection)

    def end_unchanged(self) -> None:
        """End a transaction that has written nothing.

        It commits, because after a ROLLBACK psycopg would prepare all its statements again.
        """
        with limited(self.connection, self.limits.seconds):
            self.connection.execute("COMMIT", prepare=self.limits.prepare)

    def roll_back(self) -> None:
        """Roll back the transaction if it is still open, and give the connection back as it was."""
        self.connection.cursor_factory = self.cursor_factory
        with limited(self.connection, self.limits.seconds):
            roll_back(self.connection)


@dataclass(frozen=True, slots=True)
class AsyncTransaction:
    """A `Transaction` for asyncio."""

    connection: AsyncConnection
    first: tuple[Any, ...]
    cursor_factory: type[psycopg.AsyncCursor[tuple[Any, ...]]]
    limits: TransactionLimits

    @classmethod
    async def begin(
        cls,
        connection: AsyncConnection,
        statement: LiteralString,
        parameters: Mapping[str, Any],
        limits: TransactionLimits = _NO_LIMITS,
    ) -> Self:
        """See `Transaction.begin`."""
        require_idle(connection)
        prepare = limits.prepare
        with limited(connection, limits.seconds):
            try:
                if opening := limits.opening(connection):
                    await connection.execute(opening, prepare=prepare)
                cursor = connection.cursor(row_factory=tuple_row)
                await cursor.execute(statement, parameters, prepare=prepare)
                row = require_row(await cursor.fetchone())
            except BaseException:
                await roll_back_async(connection)
                raise
        return cls(connection, row, _guard_cursors(connection), limits)

    async def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """See `Transaction.commit`."""
        prepare = self.limits.prepare
        try:
            with limited(self.connection, self.limits.seconds):
                await self.connection.execute(self.limits.last, prepare=prepare)
                await self.connection.execute(statement, parameters, prepare=prepare)
                await self.connection.execute("COMMIT", prepare=prepare)
        except psycopg.OperationalError as error:
            if _is_ambiguous(self.connection, error):
                raise AmbiguousError(_UNKNOWN_OUTCOME) from error
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the transaction was committed or rolled back."""
        return _has_ended(self.connection)

    async def end_unchanged(self) -> None:
        """See `Transaction.end_unchanged`."""
        with limited(self.connection, self.limits.seconds):
            await self.connection.execute("COMMIT", prepare=self.limits.prepare)

    async def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        self.connection.cursor_factory = self.cursor_factory
        with limited(self.connection, self.limits.seconds):
            await roll_back_async(self.connection)


def require_idle(connection: AnyConnection) -> None:
    """Raise InternalError if the connection is in a transaction, with which keys would be rolled back."""
    if not connection.closed and connection.info.transaction_status not in (
        TransactionStatus.IDLE,
        TransactionStatus.UNKNOWN,
    ):
        raise InternalError(
            "the connection is in a transaction, whose end would decide about the key: use another one, or a pool"
        )


def _guard_cursors(connection: AnyConnection) -> type[Any]:
    """Let the connection make guarded cursors, and return the class of those that it made before."""
    factory: type[Any] = connection.cursor_factory
    if issubclass(factory, _GuardedCursor):
        raise InternalError("a guard is already open on this connection: guards cannot be nested")
    connection.cursor_factory = type(f"Guarded{factory.__name__}", (_GuardedCursor, factory), {})
    return factory


def require_row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return the row; raise InternalError if there is none."""
    if row is None:
        raise InternalError(_NO_ROW)
    return row


def _has_ended(connection: AnyConnection) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _is_ambiguous(connection: AnyConnection, error: psycopg.OperationalError) -> bool:
    """Return whether the connection broke during a COMMIT, so that the outcome is unknown."""
    return error.sqlstate is None or connection.closed


def roll_back(connection: Connection) -> None:
    """Roll back, ignoring errors: if the connection is lost, the server rolls back and the next use reconnects."""
    recover(connection)
    with suppress(psycopg.Error):
        connection.rollback()


async def roll_back_async(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Roll back, ignoring errors, like `roll_back`."""
    with suppress(psycopg.Error):
        await connection.rollback()
