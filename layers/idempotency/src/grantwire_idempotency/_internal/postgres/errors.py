"""Converts errors of psycopg into errors of the library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.foundation.shortages import BUSY, is_local_shortage
from grantwire_idempotency.errors import BusyError, ConfigError, InternalError, RetryableError

with optional_package("psycopg", used_by="PostgreSQL"):
    import psycopg

if TYPE_CHECKING:
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency.errors import GrantwireError

_TOO_MANY_CONNECTIONS = "53300"
# A prepared statement of another client of the pooler, or one that another session has.
_PREPARED_SQLSTATES = {"26000", "42P05"}
# libpq gives no SQLSTATE of an attempt to connect; PgBouncer has one for all its errors.
_CONNECT_SQLSTATES = {None, "08P01"}
_BUSY_TEXTS = (
    "too many clients already",
    "too many connections for",
    "remaining connection slots are reserved",
    "no more connections allowed",  # PgBouncer: max_client_conn
    "query_wait_timeout",  # PgBouncer: its pool is exhausted
)
# Messages of a server, or of PgBouncer, that refuses an attempt to connect.
_WRONG_LOGIN = re.compile(
    r"authentication failed|no password supplied|no credentials for|role .* does not exist|not permitted to log in"
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects|no such user"
)
_WRONG_DATABASE = re.compile(r"database .* does not exist|no such database|permission denied for database")
# Classes of SQLSTATE: invalid authorization, no such database or schema, and a missing table, function or privilege.
_CONFIG_CLASSES = {"28", "3D", "3F", "42"}
_SCHEMA = "is the schema installed, and may the role use it? Run `python -m grantwire_idempotency schema`"

# Nothing was committed and a retry may succeed: contention, timeouts, a server that is starting, stopping, full or in
# recovery.
RETRYABLE_SQLSTATES = {
    "25006",  # read_only_sql_transaction: connected to a replica during a failover
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "53100",  # disk_full
    "53200",  # out_of_memory
    _TOO_MANY_CONNECTIONS,
    "55P03",  # lock_not_available
    "57014",  # query_canceled: the statement timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "58030",  # io_error
}


def is_unavailable(error: psycopg.Error) -> bool:
    """Return whether nothing was committed and a retry may succeed."""
    is_unreachable = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return is_unreachable or error.sqlstate in RETRYABLE_SQLSTATES or sqlstate_class(error) == "08"


def is_busy(error: psycopg.Error) -> bool:
    """Return whether no connection is free: on this machine, in a pooler, or on a server that is healthy."""
    if error.sqlstate == _TOO_MANY_CONNECTIONS:
        return True
    return error.sqlstate in _CONNECT_SQLSTATES and (
        is_local_shortage(error) or any(text in str(error) for text in _BUSY_TEXTS)
    )


def is_authentication_error(error: psycopg.Error) -> bool:
    """Return whether the server rejects the role or its password. While connecting, libpq reports only a text."""
    return sqlstate_class(error) == "28" or (error.sqlstate in _CONNECT_SQLSTATES and _matches(_WRONG_LOGIN, error))


def is_wrong_setting(error: psycopg.Error) -> bool:
    """Return whether the server refuses to connect this role to this database: no retry can succeed."""
    return is_authentication_error(error) or (error.sqlstate in _CONNECT_SQLSTATES and _matches(_WRONG_DATABASE, error))


def convert_error(error: psycopg.Error, logger: LibraryLogger, *, of_work: bool = False) -> GrantwireError:
    """Return BusyError if no connection is free, RetryableError if the database is unavailable.

    ConfigError if the database, the role or the schema is wrong; with `of_work`, the statement can be one of the user,
    so the connection is right. Otherwise InternalError.
    """
    reason = describe(error)
    if not of_work and is_wrong_setting(error):
        return ConfigError([f"PostgreSQL refuses the connection: {reason}"])
    if is_busy(error):
        logger.debug("no free connection", extra={"reason": reason, "sqlstate": error.sqlstate})
        return BusyError(BUSY)
    if is_unavailable(error):
        logger.warning("postgres unavailable", extra={"reason": reason, "sqlstate": error.sqlstate})
        return RetryableError("temporarily unavailable, send the same request again")
    refusal = f"PostgreSQL refused a statement: {reason} ({error.sqlstate})"
    if error.sqlstate in _PREPARED_SQLSTATES:
        return InternalError(f"{refusal}; behind a pooler, open the connection with prepare_threshold=None")
    if not of_work and sqlstate_class(error) in _CONFIG_CLASSES:
        return ConfigError([f"{refusal}; {_SCHEMA}"])
    return InternalError(refusal)


def describe(error: psycopg.Error) -> str:
    """Return the message of an error as one line, for logs."""
    return error.diag.message_primary or str(error).partition("\n")[0]


def _matches(pattern: re.Pattern[str], error: psycopg.Error) -> bool:
    return bool(pattern.search(str(error)))


def sqlstate_class(error: psycopg.Error) -> str:
    """Return the first two characters of the SQLSTATE, or "" if there is none."""
    return (error.sqlstate or "")[:2]
