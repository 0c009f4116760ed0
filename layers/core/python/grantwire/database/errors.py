"""Converts errors of psycopg to errors of Grantwire: the only place that interprets SQLSTATE."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from grantwire.errors import InternalError, RejectedError, RetryableError, SystemFaultError
from grantwire.observability import logger
from grantwire_idempotency.databases import describe, is_unavailable, sqlstate_class

if TYPE_CHECKING:
    from collections.abc import Iterator

# SQLSTATE classes of errors that the system causes: connection, transaction state, credentials, schema, resources, the
# server itself (N6). The data cause classes 22 and 23, DataError and IntegrityError (N5). Any other error, such as an
# exception raised by a trigger, is attributed to the row that was written.
_SYSTEM_CLASSES = {"08", "25", "26", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"}

# Advice to the operator when TLS prevents a connection, by a part of libpq's message.
_TLS_ADVICE = {
    "does not support SSL": "enable TLS in PostgreSQL, or connect to a port that supports it",
    "certificate verify failed": "DATABASE_TLS_CA must contain the authority that signed the server's certificate",
    "does not match host name": "connect to a host name that the server's certificate contains",
    "root certificate": "DATABASE_TLS_CA must name a readable PEM file",
}


def to_grantwire_error(error: psycopg.Error, *, in_recovery: bool = False) -> RetryableError | InternalError:
    """Return the Grantwire error for an error of psycopg, and log it if the database is unavailable.

    RetryableError if a retry may succeed, SystemFaultError if the system is at fault, otherwise InternalError.
    `in_recovery` means that the server refused the statement because it is a standby, for example during a promotion.
    """
    is_unreachable = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    if in_recovery or is_unavailable(error):
        advice = next((f"; {advice}" for text, advice in _TLS_ADVICE.items() if text in str(error)), "")
        # ERROR if waiting cannot help: the server refused the connection (wrong password, no such database), or its
        # certificate was refused.
        log = logger.error if is_unreachable and (advice or "FATAL" in str(error)) else logger.warning
        log("database unavailable", reason=describe(error) + advice, sqlstate=error.sqlstate)
        return RetryableError("temporarily unavailable, send the same request again")
    message = f"PostgreSQL refused a statement: {describe(error)} ({error.sqlstate})"
    return SystemFaultError(message) if sqlstate_class(error) in _SYSTEM_CLASSES else InternalError(message)


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
