"""Runs statements and transactions on the connection of an execution environment, and reconnects when it is lost."""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.database.connection import connect
from grantwire.database.errors import to_grantwire_error
from grantwire.errors import AmbiguousError, GrantwireError, InternalError
from grantwire.observability import logger
from grantwire_idempotency.databases import NoResponseError, Transaction, describe, watch_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import LiteralString, TypeVar

    from grantwire.database.connection import Connection
    from grantwire.database.settings import DatabaseSettings

    T = TypeVar("T")

# After these errors the connection is unusable: it broke, or the server is a standby.
_UNUSABLE_SQLSTATES = {None, "25006"}
# A standby refuses unlogged tables as a feature that it does not support.
_NOT_SUPPORTED = "0A000"
_DEADLOCK_DETECTED = "40P01"
# The other transaction must take the locks that this one released before it asks for them again.
_DEADLOCK_PAUSE_SECONDS = 0.1


class Database:
    """The PostgreSQL connection of an execution environment.

    `session` maps PostgreSQL settings to the values that each new connection sets.
    """

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
        self._connection: Connection | None = None
        self._cursor: psycopg.Cursor[tuple[Any, ...]] | None = None
        self._foreign: list[object] = []
        watch_forks(self)

    def reset_after_fork(self) -> None:
        """Keep the connection of the process that forked this one out of use, and open another one."""
        # Closing it would end the session of the other process.
        self._foreign += [self._connection, self._cursor]
        self._connection = self._cursor = None

    def fetch_row(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run one statement in its own transaction and return its one row.

        If the connection was lost, the statement is sent once more over a new connection. It is also sent once more if
        PostgreSQL ended it because of a deadlock. So it must be safe to repeat: a read, or a change that an idempotency
        key protects.
        """
        row = self._with_repeat(lambda connection: self._execute(connection, statement, parameters))
        if row is None:
            raise InternalError("the statement must return a row, but returned none")
        return row

    @contextmanager
    def transaction(self, first: LiteralString, parameters: Mapping[str, Any]) -> Iterator[Transaction]:
        """Open a transaction; BEGIN and its first statement, which returns one row, take one round trip.

        `Transaction.commit` sends the last statement together with COMMIT. A block that ends without a commit is rolled
        back. If the connection was lost, or in a deadlock, BEGIN and the first statement are sent once more; later
        statements are never repeated.
        """
        transaction = self._with_repeat(lambda connection: Transaction.begin(connection, first, parameters))
        try:
            yield transaction
        except psycopg.Error as error:
            raise self._convert(error) from error
        except AmbiguousError:
            self.close()
            raise
        finally:
            transaction.roll_back()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Yield the connection in autocommit mode, for several statements or a transaction.

        Errors of psycopg are raised as errors of Grantwire. Nothing is repeated: the caller decides what to do after a
        RetryableError, and the next session reconnects.
        """
        try:
            yield self._get_connection()
        except psycopg.Error as error:
            raise self._convert(error) from error
        except GrantwireError as error:
            if isinstance(error.__cause__, psycopg.Error):
                in_recovery = self._is_in_recovery(error.__cause__)
                self._close_if_lost(error.__cause__)
                if in_recovery:
                    raise to_grantwire_error(error.__cause__, in_recovery=True) from error.__cause__
            raise

    def connect_early(self) -> None:
        """Connect before the first use. Never raises: the first use tries again, and reports its error."""
        try:
            self._get_connection()
        except (psycopg.Error, GrantwireError) as error:
            reason = describe(error) if isinstance(error, psycopg.Error) else str(error)
            logger.warning("could not connect before the first request", reason=reason)

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._cursor = None

    def _with_repeat(self, action: Callable[[Connection], T]) -> T:
        """Run an action that is safe to repeat; repeat it once after a lost connection or a deadlock."""
        try:
            return action(self._get_connection())
        except psycopg.Error as error:
            if self._close_if_lost(error):
                logger.warning("database connection lost, reconnecting", reason=describe(error))
            elif error.sqlstate == _DEADLOCK_DETECTED:
                logger.warning("deadlock, repeating the statement", reason=describe(error))
                time.sleep(_DEADLOCK_PAUSE_SECONDS)
            else:
                raise self._convert(error) from error
        try:
            return action(self._get_connection())
        except psycopg.Error as second_error:
            raise self._convert(second_error) from second_error

    def _execute(
        self, connection: Connection, statement: LiteralString, parameters: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        if self._cursor is None:
            self._cursor = connection.cursor()
        return self._cursor.execute(statement, parameters).fetchone()

    def _get_connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._settings, application_name=self._application_name)
            for name, value in self._session_settings.items():
                self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return self._connection

    def _convert(self, error: psycopg.Error) -> GrantwireError:
        """Close an unusable connection, and return the error of Grantwire."""
        in_recovery = self._is_in_recovery(error)
        self._close_if_lost(error)
        return to_grantwire_error(error, in_recovery=in_recovery)

    def _is_in_recovery(self, error: psycopg.Error) -> bool:
        """Return whether the server refused a statement because it is a standby; then close the connection.

        The next one may reach the new primary. The server reports its state without a question; a proxy may not.
        """
        connection = self._connection
        if error.sqlstate != _NOT_SUPPORTED or connection is None or connection.closed:
            return False
        in_recovery = connection.info.parameter_status("in_hot_standby") == "on"
        if not in_recovery:
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
                row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
                in_recovery = row is not None and bool(row[0])
        if in_recovery:
            self.close()
        return in_recovery

    def _close_if_lost(self, error: psycopg.Error) -> bool:
        """Close an unusable connection; return True if the server closed it, so that reconnecting may help."""
        has_responded = not isinstance(error, NoResponseError)
        is_lost = self._connection is not None and self._connection.closed and has_responded
        if is_lost or not has_responded or error.sqlstate in _UNUSABLE_SQLSTATES:
            self.close()
        return is_lost
