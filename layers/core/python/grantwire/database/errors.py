"""Converts errors of psycopg to errors of Grantwire: the only place that interprets SQLSTATE."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from grantwire.errors import InternalError, RejectedError, RetryableError, SystemFaultError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nothing was committed and a retry may succeed: contention, timeouts, a server that is starting, stopping, full or in
# recovery.
_RETRYABLE_SQLSTATES = {
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

# SQLSTATE classes of errors that the system causes: connection, transaction state, credentials, schema, resources, the
# server itself (N6). The data cause classes 22 and 23, DataError and IntegrityError (N5). Any other error, such as an
# exception raised by a trigger, is attributed to the row that was written.
_SYSTEM_CLASSES = {"08", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"}

# Messages of a server that rejects the credentials. While connecting, libpq reports only the text, no SQLSTATE.
_AUTHENTICATION_FAILED = re.compile(
    r"authentication failed|no credentials for|role .* does not exist|not permitted to log in|no pg_hba\.conf entry"
)

# Advice to the operator when TLS prevents a connection, by a part of libpq's message.
_TLS_ADVICE = {
    "does not support SSL": "enable TLS in PostgreSQL, or connect to a port that supports it",
    "certificate verify failed": "DATABASE_TLS_CA must contain the authority that signed the server's certificate",
    "does not match host name": "connect to a host name that the server's certificate contains",
    "root certificate": "DATABASE_TLS_CA must name a readable PEM file",
}


def to_grantwire_error(error: psycopg.Error) -> RetryableError | InternalError:
    """Return the Grantwire error for an error of psycopg, and log it if the database is unavailable.

    RetryableError if a retry may succeed, SystemFaultError if the system is at fault, otherwise InternalError.
    """
    is_unreachable = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if is_unreachable or error.sqlstate in _RETRYABLE_SQLSTATES or _sqlstate_class(error) == "08":
        advice = next((f"; {advice}" for text, advice in _TLS_ADVICE.items() if text in str(error)), "")
        # ERROR if waiting cannot help: the server refused the connection (wrong password, no such database), or its
        # certificate was refused.
        log = logger.error if is_unreachable and (advice or "FATAL" in str(error)) else logger.warning
        log("database unavailable", reason=describe(error) + advice, sqlstate=error.sqlstate)
        return RetryableError("temporarily unavailable, send the same request again")
    message = f"PostgreSQL refused a statement: {describe(error)} ({error.sqlstate})"
    return SystemFaultError(message) if _sqlstate_class(error) in _SYSTEM_CLASSES else InternalError(message)


@contextmanager
def wrap_exceptions() -> Iterator[None]:
    """Convert errors of psycopg inside the block; the original error is the cause of the new one.

    RejectedError if the database refuses the data (a constraint, a type), otherwise as `to_grantwire_error`.
    """
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise RejectedError(describe(error)) from error
    except psycopg.Error as error:
        raise to_grantwire_error(error) from error


def describe(error: psycopg.Error) -> str:
    """Return the message of an error as one line, for logs."""
    return error.diag.message_primary or str(error).partition("\n")[0]


def is_authentication_error(error: psycopg.Error) -> bool:
    """Return whether the server rejected the credentials."""
    return _sqlstate_class(error) == "28" or bool(_AUTHENTICATION_FAILED.search(str(error)))


def _sqlstate_class(error: psycopg.Error) -> str:
    return (error.sqlstate or "")[:2]
