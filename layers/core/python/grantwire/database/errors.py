"""What psycopg's errors mean to the rest of Grantwire; nobody else knows them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from grantwire.errors import InternalError, RejectedError, RetryableError, SystemFaultError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nothing was committed and a later try may succeed: contention, timeouts, a server that is starting, stopping, full or
# in recovery.
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

# Classes of SQLSTATE: the data are at fault (N5), or the system is: connection, transaction state, credentials, schema,
# resources, the server itself (N6). Whatever is in neither, such as an exception raised by a trigger, is the fault of
# the row that meets it.
_DATA_CLASSES = {"22", "23"}
_SYSTEM_CLASSES = {"08", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"}

# How a server says that it does not take these credentials; when connecting, libpq hands on its words alone.
_REFUSED = re.compile(
    r"authentication failed|no credentials for|role .* does not exist|not permitted to log in|no pg_hba\.conf entry"
)

# What a person should do about a connection that TLS did not allow, by libpq's words.
_TLS_ADVICE = {
    "does not support SSL": "switch TLS on in PostgreSQL, or connect to the port that has it",
    "certificate verify failed": "DATABASE_TLS_CA must hold the authority that signed the server's certificate",
    "does not match host name": "connect by a name that the server's certificate holds",
    "root certificate": "DATABASE_TLS_CA must name a PEM file that can be read",
}


def translated(error: psycopg.Error) -> RetryableError | InternalError:
    """The error that the rest of Grantwire knows; the original is its cause."""
    unreachable = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if unreachable or error.sqlstate in _RETRYABLE or (error.sqlstate or "").startswith("08"):
        advice = next((f"; {advice}" for words, advice in _TLS_ADVICE.items() if words in str(error)), "")
        # The server itself refused the connection, for a wrong password or no such database, or we refused the server:
        # waiting will not mend that.
        complain = logger.error if unreachable and (advice or "FATAL" in str(error)) else logger.warning
        complain("database unavailable", reason=reason(error) + advice, sqlstate=error.sqlstate)
        return RetryableError("temporarily unavailable, send the same request again")
    refusal = f"PostgreSQL refused a statement: {reason(error)} ({error.sqlstate})"
    return SystemFaultError(refusal) if _class_of(error) in _SYSTEM_CLASSES else InternalError(refusal)


@contextmanager
def wrap_exceptions() -> Iterator[None]:
    """Raise what psycopg raises as the error that the policy of workers knows; the original is its cause.

    RejectedError if the data are at fault, RetryableError or SystemFaultError if the system is, else InternalError.
    """
    try:
        yield
    except psycopg.Error as error:
        raise (RejectedError(reason(error)) if _class_of(error) in _DATA_CLASSES else translated(error)) from error


@contextmanager
def refusing_data() -> Iterator[None]:
    """Data that a constraint or a type refuses are at fault themselves: RejectedError, with what PostgreSQL says."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise RejectedError(reason(error)) from error


def _class_of(error: psycopg.Error) -> str:
    return (error.sqlstate or "")[:2]


def reason(error: psycopg.Error) -> str:
    """The one line that a log needs."""
    return error.diag.message_primary or str(error).partition("\n")[0]


def is_refusal(error: psycopg.Error) -> bool:
    """Whether the server did not take these credentials."""
    return (error.sqlstate or "").startswith("28") or bool(_REFUSED.search(str(error)))
