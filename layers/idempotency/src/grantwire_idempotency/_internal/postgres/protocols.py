"""The protocols of a PostgreSQL database that the library requires. The service's `Database` implements them.

The database owns the connection and reconnects when it is lost. It raises the library's errors instead of the driver's:
RetryableError if PostgreSQL is unavailable, InternalError if PostgreSQL rejects a statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import LiteralString

    from psycopg import AsyncConnection, Connection


class StatementRunner(Protocol):
    """Runs single statements, as stores and locks require."""

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """Run a statement that returns one row, in its own transaction.

        The statement may be sent a second time after a lost connection, so it must be safe to repeat. Every statement
        of the library is.
        """


class AsyncStatementRunner(Protocol):
    """Runs single statements for asyncio."""

    async def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """See `StatementRunner`."""


class Transaction(Protocol):
    """An open transaction."""

    @property
    def connection(self) -> Connection[tuple[Any, ...]]:
        """The connection of the transaction."""

    @property
    def first(self) -> tuple[Any, ...]:
        """The row that the first statement returned."""

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> None:
        """Run the last statement and COMMIT. Raises AmbiguousError if the connection breaks before the response."""

    @property
    def has_ended(self) -> bool:
        """Whether the transaction was committed or rolled back."""

    def end_unchanged(self) -> None:
        """End a transaction that made no changes."""


class TransactionRunner(Protocol):
    """Begins transactions, as the transaction guard requires."""

    def transaction(
        self, first: LiteralString, parameters: Mapping[str, Any], /
    ) -> AbstractContextManager[Transaction]:
        """Begin a transaction with a statement that returns one row; roll back at the end unless it was committed."""


class AsyncTransaction(Protocol):
    """An open transaction for asyncio."""

    @property
    def connection(self) -> AsyncConnection[tuple[Any, ...]]:
        """The connection of the transaction."""

    @property
    def first(self) -> tuple[Any, ...]:
        """The row that the first statement returned."""

    async def commit(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> None:
        """See `Transaction`."""

    @property
    def has_ended(self) -> bool:
        """Whether the transaction was committed or rolled back."""

    async def end_unchanged(self) -> None:
        """See `Transaction`."""


class AsyncTransactionRunner(Protocol):
    """Begins transactions for asyncio."""

    def transaction(
        self, first: LiteralString, parameters: Mapping[str, Any], /
    ) -> AbstractAsyncContextManager[AsyncTransaction]:
        """See `TransactionRunner`."""
