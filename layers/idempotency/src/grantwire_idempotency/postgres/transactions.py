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

from grantwire_idempotency.errors import AmbiguousError, InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import LiteralString, Self

    Connection = psycopg.Connection[tuple[Any, ...]]

TRANSACTION_ENDED = (
    "the guarded work has ended the transaction of its guard: it must not commit or roll back, use"
    " `connection.transaction()` for a part that may fail; nothing is stored"
)


class _GuardedCursor:
    """Part of a cursor class that executes nothing outside the transaction in which the cursor was made."""

    connection: Connection

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
            raise InternalError("the statement must return a row, but returned none")
        factory = connection.cursor_factory
        connection.cursor_factory = _guarded(factory)
        return cls(connection, row, factory)

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """Send the last statement and COMMIT in one round trip.

        Raises InternalError if the transaction has already ended. Raises AmbiguousError if the connection breaks before
        the response, so that the outcome is unknown.
        """
        if self.has_ended:
            raise InternalError(TRANSACTION_ENDED)
        try:
            with self.connection.pipeline():
                self.connection.execute(statement, parameters)
                self.connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if error.sqlstate is None or self.connection.closed:
                raise AmbiguousError("the outcome is unknown; repeat the request with the same key") from error
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the transaction was committed or rolled back."""
        return not self.connection.closed and self.connection.info.transaction_status == TransactionStatus.IDLE

    def end_unchanged(self) -> None:
        """End a transaction that has written nothing.

        It commits, because after a ROLLBACK psycopg would prepare all its statements again.
        """
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Roll back the transaction if it is still open, and give the connection back as it was."""
        self.connection.cursor_factory = self.cursor_factory
        roll_back(self.connection)


def require_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise InternalError if the connection is in a transaction, with which keys would be rolled back."""
    if not connection.closed and connection.info.transaction_status not in (
        TransactionStatus.IDLE,
        TransactionStatus.UNKNOWN,
    ):
        raise InternalError(
            "the connection is in a transaction, whose end would decide about the key: use another one, or a pool"
        )


def _guarded(factory: type[Any]) -> type[Any]:
    if issubclass(factory, _GuardedCursor):
        raise InternalError("a guard is already open on this connection: guards cannot be nested")
    return type(f"Guarded{factory.__name__}", (_GuardedCursor, factory), {})


def roll_back(connection: Connection) -> None:
    """Roll back, ignoring errors: if the connection is lost, the server rolls back and the next use reconnects."""
    with suppress(psycopg.Error):
        connection.rollback()


async def roll_back_async(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Roll back, ignoring errors, like `roll_back`."""
    with suppress(psycopg.Error):
        await connection.rollback()
