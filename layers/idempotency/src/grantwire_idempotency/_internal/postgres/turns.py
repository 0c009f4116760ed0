"""Turns on one connection, whose callers do not all wait for the same server, one after the other (C26).

If the server does not respond to the caller that has the connection, those that wait for it at that moment get the same
error. The next call tries the server again.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import psycopg

from grantwire_idempotency._internal.postgres.deadlines import NoResponseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# A refused connection is known at once, and a lost one may work again: these two are what takes time.
_NO_RESPONSE = (NoResponseError, psycopg.errors.ConnectionTimeout)
_SHARED = "the server did not respond to the call before this one"


class Turns:
    """The turns of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0

    @contextmanager
    def take(self, *, shares_errors: bool = True) -> Iterator[None]:
        """Wait for a turn, which ends with the block. Raises NoResponseError if one before it got no response."""
        failures = self._failures
        with self._lock:
            if shares_errors and self._failures != failures:
                raise NoResponseError(_SHARED)
            try:
                yield
            except _NO_RESPONSE:
                self._failures += 1
                raise


class AsyncTurns:
    """The turns of the tasks of an event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failures = 0

    @asynccontextmanager
    async def take(self, *, shares_errors: bool = True) -> AsyncIterator[None]:
        """See `Turns.take`."""
        failures = self._failures
        async with self._lock:
            if shares_errors and self._failures != failures:
                raise NoResponseError(_SHARED)
            try:
                yield
            except _NO_RESPONSE:
                self._failures += 1
                raise
