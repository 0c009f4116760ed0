"""What the library needs of a PostgreSQL database: two protocols, which the service's `Database` fits.

The database owns the connection, connects again when it is lost, and raises the library's errors in place of the
driver's: RetryableError if it is out of reach, InternalError if it refuses a statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import LiteralString

    from psycopg import Connection


class StatementRunner(Protocol):
    """Runs one statement at a time. Enough for stores and locks."""

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> tuple[Any, ...]:
        """Run a statement that returns one row, in a transaction of its own.

        The statement may be sent a second time after a lost connection, so it must be safe to repeat. Every statement
        of the library is.
        """


class Transaction(Protocol):
    """A transaction that has begun."""

    @property
    def connection(self) -> Connection[tuple[Any, ...]]:
        """The connection that it runs on."""

    @property
    def first(self) -> tuple[Any, ...]:
        """The row that its first statement returned."""

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any], /) -> None:
        """Run the last statement and COMMIT; AmbiguousError if the connection breaks before the response."""

    def end_unchanged(self) -> None:
        """End a transaction that has written nothing."""


class TransactionRunner(Protocol):
    """Begins transactions. Enough for the transaction guard."""

    def transaction(
        self, first: LiteralString, parameters: Mapping[str, Any], /
    ) -> AbstractContextManager[Transaction]:
        """Begin a transaction with one statement that returns one row; roll back what was not committed at the end."""
