"""PostgreSQL: one connection for each execution environment, and the one place that knows psycopg's errors.

The connection is made when it is first needed and made again when it turns out to be lost: PostgreSQL restarted, or the
sandbox was frozen long enough for the network to forget it. Every wait has an end: connecting, a lock, a statement, and
a server that no longer answers at all.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from grantwire.errors import AmbiguousError, InternalError, RejectedError, RetryableError
from grantwire.observability import log
from grantwire.secrets import database_url, read_secret
from grantwire.settings import duration, flag, setting, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import timedelta
    from typing import LiteralString, Self, TypeVar

    from psycopg.abc import PQGen

    RV = TypeVar("RV")
    T = TypeVar("T")

# Past the server's own statement timeout by this much, the server is no longer answering.
_GRACE_SECONDS = 1.0

# Nothing was committed and a later try may succeed: contention, timeouts, a server that is starting, stopping, full or
# in recovery. Everything else that PostgreSQL refuses is a bug of ours.
_RETRYABLE = {
    "25006",  # read_only_sql_transaction: connected to a replica during a failover
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "53100",  # disk_full
    "53200",  # out_of_memory
    "53300",  # too_many_connections
    "55P03",  # lock_not_available
    "57014",  # query_canceled: the statement timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "58030",  # io_error
}

# The connection itself is of no more use: no answer within the longest wait, or the wrong server.
_UNUSABLE = {None, "25006"}


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Where PostgreSQL is and how long to wait for it."""

    url: str | None = setting("DATABASE_URL", text, optional=True, secret=True)
    secret_arn: str | None = setting("DATABASE_SECRET_ARN", text, optional=True)
    connect_timeout: timedelta = setting("DATABASE_CONNECT_TIMEOUT", duration(low="2s", high="10s"), default="2s")
    statement_timeout: timedelta = setting(
        "DATABASE_STATEMENT_TIMEOUT", duration(low="100ms", high="15m"), default="5s"
    )
    # RDS Proxy refuses startup options; behind it, set the statement timeout on the role.
    startup_options: bool = setting("DATABASE_STARTUP_OPTIONS", flag, default="true")

    def problems(self) -> Iterator[str]:
        """Exactly one way to the database."""
        if (self.url is None) == (self.secret_arn is None):
            yield "exactly one of DATABASE_URL and DATABASE_SECRET_ARN must be set"


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that has stopped answering, which no server-side timeout can."""

    longest_wait: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """As psycopg's, with `longest_wait` in place of waiting for ever."""
        return super().wait(gen, interval=interval, timeout=self.longest_wait if timeout is None else timeout)


Connection = psycopg.Connection[tuple[Any, ...]]


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
    """The execution environment's connection to PostgreSQL."""

    def __init__(self, settings: DatabaseSettings, *, application_name: str = "grantwire") -> None:
        self._settings = settings
        self._application_name = application_name
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

    def close(self) -> None:
        """Give the connection back; the next use makes a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._cursor = None

    def _connected(self, begin: Callable[[Connection], T]) -> T:
        """Do something that may be repeated, once more over a new connection if the old one turns out to be lost."""
        try:
            return begin(self._ready_connection())
        except psycopg.Error as error:
            if not self._forget_if_lost(error):
                raise translated(error) from error
            log.warning("database connection lost, connecting again", reason=_reason(error))
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

    def _ready_connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._settings, application_name=self._application_name)
        return self._connection

    def _forget_if_lost(self, error: psycopg.Error) -> bool:
        """Drop a connection that is of no more use; true if the other side closed it, so that a new one may help."""
        lost = self._connection is not None and self._connection.closed
        if lost or error.sqlstate in _UNUSABLE:
            self.close()
        return lost


def connect(settings: DatabaseSettings, *, application_name: str) -> BoundedConnection:
    """A new connection in autocommit, with its limits set; raises psycopg's own errors."""
    url = settings.url if settings.url is not None else database_url(read_secret(settings.secret_arn or ""))
    statement_ms = int(settings.statement_timeout.total_seconds() * 1000)
    connect_seconds = int(settings.connect_timeout.total_seconds())
    connection = BoundedConnection.connect(
        url,
        autocommit=True,
        prepare_threshold=0,
        row_factory=tuple_row,
        application_name=application_name,
        connect_timeout=connect_seconds,
        tcp_user_timeout=connect_seconds * 1000,
        options=f"-c statement_timeout={statement_ms}" if settings.startup_options else None,
    )
    connection.longest_wait = settings.statement_timeout.total_seconds() + _GRACE_SECONDS
    return connection


def translated(error: psycopg.Error) -> RetryableError | InternalError:
    """The error that the rest of Grantwire knows; the original is its cause."""
    unreachable = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if unreachable or error.sqlstate in _RETRYABLE or (error.sqlstate or "").startswith("08"):
        # The server itself refused the connection: a wrong password, no such database. Waiting will not mend that.
        complain = log.error if unreachable and "FATAL" in str(error) else log.warning
        complain("database unavailable", reason=_reason(error), sqlstate=error.sqlstate)
        return RetryableError("temporarily unavailable, send the same request again")
    return InternalError(f"PostgreSQL refused a statement: {_reason(error)} ({error.sqlstate})")


@contextmanager
def refusing_data() -> Iterator[None]:
    """Data that a constraint or a type refuses are at fault themselves: RejectedError, with what PostgreSQL says."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise RejectedError(_reason(error)) from error


def _reason(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0]
