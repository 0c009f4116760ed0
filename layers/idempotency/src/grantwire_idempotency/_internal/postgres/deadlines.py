"""Connections that stop waiting for a server that does not respond, and whose own timeouts end no wait (C26)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from typing import TypeVar

    from psycopg.abc import PQGen

    RV = TypeVar("RV")

# The clock of psycopg may be a little ahead of the one that is read here.
_NEARLY = 0.9


class DeadlineConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed if a response takes longer than `max_wait_seconds`. None: there is no limit."""

    max_wait_seconds: float | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait as psycopg does, but at most `max_wait_seconds`."""
        limit = self.max_wait_seconds if timeout is None else None
        if limit is None:
            return super().wait(gen, interval=interval, timeout=timeout)
        started = time.monotonic()
        try:
            return super().wait(gen, interval=interval, timeout=limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is not None or time.monotonic() - started < _NEARLY * limit:
                raise
            self.pgconn.finish()
            raise _no_response(limit) from error


class AsyncDeadlineConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A `DeadlineConnection` for asyncio."""

    max_wait_seconds: float | None = None

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:  # noqa: ASYNC109
        """See `DeadlineConnection`."""
        limit = self.max_wait_seconds if timeout is None else None
        if limit is None:
            return await super().wait(gen, interval=interval, timeout=timeout)
        started = time.monotonic()
        try:
            return await super().wait(gen, interval=interval, timeout=limit)
        except psycopg.OperationalError as error:
            if error.sqlstate is not None or time.monotonic() - started < _NEARLY * limit:
                raise
            self.pgconn.finish()
            raise _no_response(limit) from error


def set_limit(connection: object, seconds: float | None) -> None:
    """Limit the waits of a connection that the library opened; those of the user have the limits of the user."""
    if isinstance(connection, DeadlineConnection | AsyncDeadlineConnection):
        connection.max_wait_seconds = seconds


def get_limit(connection: object) -> float | None:
    """Return the limit of a connection that the library opened."""
    return getattr(connection, "max_wait_seconds", None)


def _no_response(seconds: float) -> psycopg.Error:
    """Return the error for a server that does not respond. Its SQLSTATE says that the statement is not sent again."""
    return psycopg.errors.QueryCanceled(f"the server did not respond within {seconds:g} s")
