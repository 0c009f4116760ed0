"""A transaction whose first statement comes with BEGIN and whose last one comes with COMMIT: two round trips.

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

from grantwire_idempotency._internal.postgres.deadlines import get_limit, set_limit
from grantwire_idempotency._internal.postgres.interruptions import recover
from grantwire_idempotency.errors import AmbiguousError, InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping
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
class Transaction:
    """An open transaction; `first` is the row that its first statement returned."""

    connection: Connection
    first: tuple[Any, ...]
    cursor_factory: type[psycopg.Cursor[tuple[Any, ...]]]
    limit: float | None = None

    @classmethod
    def begin(cls, connection: Connection, statement: LiteralString, parameters: Mapping[str, Any]) -> Self:
        """Send BEGIN and a statement that returns one row, in one round trip; roll back if that fails.

        On a connection that is not in autocommit mode it takes two round trips.
        """
        require_idle(connection)
        try:
            with connection.pipeline():
                if connection.autocommit:
                    connection.execute("BEGIN")
                cursor = connection.cursor(row_factory=tuple_row).execute(statement, parameters)
            row = cursor.fetchone()
        except BaseException:
            roll_back(connection)
            raise
        if row is None:
            roll_back(connection)
            raise InternalError(_NO_ROW)
        return cls(connection, row, _guard_cursors(connection), _unlimit(connection))

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """Send the last statement and COMMIT in one round trip.

        Raises AmbiguousError if the connection breaks before the response, so that the outcome is unknown.
        """
        set_limit(self.connection, self.limit)
        try:
            with self.connection.pipeline():
                self.connection.execute(statement, parameters)
                self.connection.execute("COMMIT")
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
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Roll back the transaction if it is still open, and give the connection back as it was."""
        self.connection.cursor_factory = self.cursor_factory
        set_limit(self.connection, self.limit)
        roll_back(self.connection)


@dataclass(frozen=True, slots=True)
class AsyncTransaction:
    """A `Transaction` for asyncio."""

    connection: AsyncConnection
    first: tuple[Any, ...]
    cursor_factory: type[psycopg.AsyncCursor[tuple[Any, ...]]]
    limit: float | None = None

    @classmethod
    async def begin(cls, connection: AsyncConnection, statement: LiteralString, parameters: Mapping[str, Any]) -> Self:
        """See `Transaction.begin`."""
        require_idle(connection)
        try:
            async with connection.pipeline():
                if connection.autocommit:
                    await connection.execute("BEGIN")
                cursor = await connection.cursor(row_factory=tuple_row).execute(statement, parameters)
            row = await cursor.fetchone()
        except BaseException:
            await roll_back_async(connection)
            raise
        if row is None:
            await roll_back_async(connection)
            raise InternalError(_NO_ROW)
        return cls(connection, row, _guard_cursors(connection), _unlimit(connection))

    async def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """See `Transaction.commit`."""
        set_limit(self.connection, self.limit)
        try:
            async with self.connection.pipeline():
                await self.connection.execute(statement, parameters)
                await self.connection.execute("COMMIT")
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
        await self.connection.execute("COMMIT")

    async def roll_back(self) -> None:
        """See `Transaction.roll_back`."""
        self.connection.cursor_factory = self.cursor_factory
        set_limit(self.connection, self.limit)
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


def _unlimit(connection: AnyConnection) -> float | None:
    """Let the statements of the work take any time, and return the limit for those of the library."""
    limit = get_limit(connection)
    set_limit(connection, None)
    return limit


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
