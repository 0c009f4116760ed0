"""Tells a pool that is exhausted from a server that is unavailable: psycopg_pool raises the same PoolTimeout (C23).

After a timeout, one more connection is tried beside the pool. If the server accepts it, or refuses it because there are
too many, the pool is exhausted. Otherwise its error says why the pool has no connection, such as a wrong password.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire_idempotency._internal.postgres.errors import convert_error, is_busy
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency.errors import GrantwireError

# All callers of a pool share one attempt in this time, so that a shortage does not become worse.
_SECONDS_VALID = 1.0
_CONNECT_TIMEOUT = {"connect_timeout": 2}


def is_pool_timeout(error: psycopg.Error) -> bool:
    """Return whether a pool of psycopg_pool did not give a connection in its time, or has too many waiting callers."""
    return type(error).__module__ == "psycopg_pool" and type(error).__name__ in ("PoolTimeout", "TooManyRequests")


def convert_pool_error(error: psycopg.Error, logger: LibraryLogger) -> GrantwireError:
    """Return the library's error for a pool that gave no connection; a closed pool is a mistake of its user."""
    if type(error).__module__ == "psycopg_pool" and type(error).__name__ == "PoolClosed":
        return InternalError(f"the pool is not open: open it before its first use ({error})")
    return convert_error(error, logger)


class PoolProbe:
    """Tries a connection with the parameters of a pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._valid_until = 0.0
        self._refusal: psycopg.OperationalError | None = None

    def refusal(self) -> psycopg.OperationalError | None:
        """Return the error of the server, or None if it responds; the first of concurrent callers finds out for all."""
        with self._lock:
            if time.monotonic() >= self._valid_until:
                self._refusal = self._try()
                self._valid_until = time.monotonic() + _SECONDS_VALID
            return self._refusal

    def _try(self) -> psycopg.OperationalError | None:
        conninfo, options = (_resolve(value) for value in (self._pool.conninfo, self._pool.kwargs))
        try:
            psycopg.Connection.connect(conninfo or "", **_connect_options(options)).close()
        except psycopg.OperationalError as error:
            return None if is_busy(error) else error
        return None


class AsyncPoolProbe:
    """A `PoolProbe` for asyncio."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._valid_until = 0.0
        self._refusal: psycopg.OperationalError | None = None

    async def refusal(self) -> psycopg.OperationalError | None:
        """See `PoolProbe`."""
        async with self._lock:
            if time.monotonic() >= self._valid_until:
                self._refusal = await self._try()
                self._valid_until = time.monotonic() + _SECONDS_VALID
            return self._refusal

    async def _try(self) -> psycopg.OperationalError | None:
        conninfo, options = (_resolve(value) for value in (self._pool.conninfo, self._pool.kwargs))
        if inspect.isawaitable(conninfo):
            conninfo = await conninfo
        if inspect.isawaitable(options):
            options = await options
        try:
            connection = await psycopg.AsyncConnection.connect(conninfo or "", **_connect_options(options))
        except psycopg.OperationalError as error:
            return None if is_busy(error) else error
        await connection.close()
        return None


def _resolve(value: Any) -> Any:
    """Return a parameter of a pool, which can be a function."""
    return value() if callable(value) else value


def _connect_options(options: Any) -> dict[str, Any]:
    return {**(options or {}), **_CONNECT_TIMEOUT}
