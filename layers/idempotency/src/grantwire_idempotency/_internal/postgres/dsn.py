"""Opens the connections of a DSN: with timeouts that the DSN does not set, and also through a pooler (C26, C27)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from datetime import timedelta

# Parameters of a connection that the DSN does not set: no wait is longer than that.
_TIMEOUTS = {"connect_timeout": 2, "tcp_user_timeout": 5_000}
# A session behind a pooler can serve another client next, so nothing is prepared, not even by the user's work.
_SESSION: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
# PgBouncer, and RDS Proxy.
_REFUSALS = ("unsupported startup parameter", "support command-line options")


class Dsn:
    """A DSN of the user. With `statement_timeout` the server ends each statement of its sessions after that time.

    A pooler may refuse this setting. Then it is left out, and the sessions have that of their role.
    """

    def __init__(self, dsn: str, statement_timeout: timedelta | None) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            # The original error contains parts of the DSN, which could be a password.
            raise ConfigError(["the DSN is not a valid connection string of PostgreSQL"]) from None
        self._plain = make_conninfo(dsn, **{name: value for name, value in _TIMEOUTS.items() if name not in given})
        self._complete = self._plain
        options = str(given.get("options") or _default_options())
        if statement_timeout is not None and "statement_timeout" not in options:
            milliseconds = to_milliseconds(statement_timeout)
            self._complete = make_conninfo(self._plain, options=f"{options} -c statement_timeout={milliseconds}")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection in autocommit mode."""
        try:
            return psycopg.Connection.connect(self._complete, **_SESSION)
        except psycopg.OperationalError as error:
            self._leave_out_options(error)
        return psycopg.Connection.connect(self._complete, **_SESSION)

    async def connect_async(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """Open an asynchronous connection in autocommit mode."""
        try:
            return await psycopg.AsyncConnection.connect(self._complete, **_SESSION)
        except psycopg.OperationalError as error:
            self._leave_out_options(error)
        return await psycopg.AsyncConnection.connect(self._complete, **_SESSION)

    def _leave_out_options(self, error: psycopg.OperationalError) -> None:
        """Continue without the setting if a pooler has refused it; otherwise raise the error."""
        if self._complete == self._plain or not any(text in str(error) for text in _REFUSALS):
            raise error
        self._complete = self._plain


def to_milliseconds(time: timedelta) -> int:
    """Return a time as the value of a setting of PostgreSQL."""
    return min(max(1, int(time.total_seconds() * 1000)), 2**31 - 1)


def _default_options() -> str:
    """Return the options that libpq would use, those of the environment, which options of a DSN replace."""
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    return (defaults.get(b"options") or b"").decode()
