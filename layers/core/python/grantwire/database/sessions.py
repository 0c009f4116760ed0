"""One connection for each execution environment: what runs on it, and what happens when it is lost."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.database.connection import connect
from grantwire.database.errors import reason, translated
from grantwire.errors import AmbiguousError, GrantwireError, InternalError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import LiteralString, Self, TypeVar

    from grantwire.database.connection import BoundedConnection, Connection
    from grantwire.database.settings import DatabaseSettings

    T = TypeVar("T")

# The connection itself is of no more use: no answer within the longest wait, or the wrong server.
_UNUSABLE = {None, "25006"}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that has begun; `first` is what its first statement returned."""

    connection: Connection
    first: tuple[Any, ...]

    @classmethod
    def begin(cls, connection: Connection, statement: LiteralString, parameters: Mapping[str, Any]) -> Self:
        """One round trip; on an error nothing has begun."""
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                cursor = connection.execute(statement, parameters)
            row = cursor.fetchone()
        except BaseException:
            _roll_back(connection)
            raise
        if row is None:
            _roll_back(connection)
            raise InternalError("a statement that always returns a row returned none")
        return cls(connection, row)

    def commit(self, statement: LiteralString, parameters: Mapping[str, Any]) -> None:
        """Send the last statement and COMMIT in one round trip; AmbiguousError if the answer did not come."""
        try:
            with self.connection.pipeline():
                self.connection.execute(statement, parameters)
                self.connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if error.sqlstate is None or self.connection.closed:
                raise AmbiguousError(
                    "it is not known whether the change was made; repeat it with the same key"
                ) from error
            raise

    def end_unchanged(self) -> None:
        """End it where nothing was written. After a ROLLBACK psycopg would prepare all its statements again."""
        self.connection.execute("COMMIT")

    def leave(self) -> None:
        """Undo what was not committed."""
        _roll_back(self.connection)


def _roll_back(connection: Connection) -> None:
    """A connection on which not even that works is lost, which its next user notices; the server rolls back."""
    with suppress(psycopg.Error):
        connection.rollback()


class Database:
    """The execution environment's connection to PostgreSQL; `session` is what PostgreSQL's own settings are on it."""

    def __init__(
        self,
        settings: DatabaseSettings,
        *,
        application_name: str = "grantwire",
        session: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._application_name = application_name
        self._session_settings = session or {}
        self._connection: BoundedConnection | None = None
        self._cursor: psycopg.Cursor[tuple[Any, ...]] | None = None

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run one statement that returns one row, in a transaction of its own.

        When the connection turns out to be lost the statement is sent once more over a new one, so it must be safe to
        repeat: a read, or a change that an idempotency key guards.
        """
        row = self._connected(lambda connection: self._execute(connection, statement, parameters))
        if row is None:
            raise InternalError("a statement that always returns a row returned none")
        return row

    @contextmanager
    def transaction(self, first: LiteralString, parameters: Mapping[str, Any]) -> Iterator[Transaction]:
        """A transaction whose first statement, which returns one row, travels with its BEGIN in one round trip.

        Its last statement may travel with the COMMIT (`Transaction.commit`); a block that ends without that is rolled
        back. When the connection turns out to be lost at the beginning, a new one is made; later nothing is repeated.
        """
        transaction = self._connected(lambda connection: Transaction.begin(connection, first, parameters))
        try:
            yield transaction
        except psycopg.Error as error:
            self._forget_if_lost(error)
            raise translated(error) from error
        except AmbiguousError:
            self.close()
            raise
        finally:
            transaction.leave()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """The connection, in autocommit, for several statements or a transaction; psycopg's errors are translated.

        Nothing is repeated here: after a RetryableError the caller decides, and the next session connects again.
        """
        try:
            yield self._ready_connection()
        except psycopg.Error as error:
            self._forget_if_lost(error)
            raise translated(error) from error
        except GrantwireError as error:
            if isinstance(error.__cause__, psycopg.Error):
                self._forget_if_lost(error.__cause__)
            raise

    def close(self) -> None:
        """Give the connection back; the next use makes a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._cursor = None

    def _connected(self, begin: Callable[[BoundedConnection], T]) -> T:
        """Do something that may be repeated, once more over a new connection if the old one turns out to be lost."""
        try:
            return begin(self._ready_connection())
        except psycopg.Error as error:
            if not self._forget_if_lost(error):
                raise translated(error) from error
            logger.warning("database connection lost, reconnecting", reason=reason(error))
        try:
            return begin(self._ready_connection())
        except psycopg.Error as again:
            self._forget_if_lost(again)
            raise translated(again) from again

    def _execute(
        self, connection: Connection, statement: LiteralString, parameters: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        if self._cursor is None:
            self._cursor = connection.cursor()
        return self._cursor.execute(statement, parameters).fetchone()

    def _ready_connection(self) -> BoundedConnection:
        if self._connection is None:
            self._connection = connect(self._settings, application_name=self._application_name)
            for name, value in self._session_settings.items():
                self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return self._connection

    def _forget_if_lost(self, error: psycopg.Error) -> bool:
        """Drop a connection that is of no more use; true if the other side closed it, so that a new one may help."""
        lost = self._connection is not None and self._connection.closed
        if lost or error.sqlstate in _UNUSABLE:
            self.close()
        return lost
