"""Waits for a notification of PostgreSQL, or until it is time to poll anyway.

LISTEN needs a connection that stays with its session, so not one through RDS Proxy: `DATABASE_LISTEN_HOST` leads past
it, and every worker that listens can also do without. A notification that is missed costs one poll interval.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, LiteralString

from grantwire.database import Error, LockNotAvailable, listen
from grantwire.errors import GrantwireError
from grantwire.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.database import BoundedConnection, DatabaseSettings

# How long to leave a server alone to which no connection could be made.
_RECONNECT_SECONDS = 5.0


class Listener:
    """LISTEN on one channel, over a connection of its own; without settings it just waits. It never raises."""

    def __init__(self, settings: DatabaseSettings | None, channel: LiteralString) -> None:
        self._settings = settings
        self._channel = channel
        self._connection: BoundedConnection | None = None
        self._not_before = 0.0

    @property
    def enabled(self) -> bool:
        """Whether there is more than polling."""
        return self._settings is not None

    @property
    def connected(self) -> bool:
        """Whether a notification would be received."""
        return self._connection is not None

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most that long; true if one came, or if it has only just begun to listen.

        What was committed before it began to listen sent it no notification, so there may be work.
        """
        if self._connection is None:
            if self.use(lambda _: None):
                return True
            await asyncio.sleep(seconds)
            return False
        return await self._readable(self._connection, seconds) and self.use(_drain)

    async def _readable(self, connection: BoundedConnection, seconds: float) -> bool:
        """Wait in the event loop, which goes on with its other work."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(connection.fileno(), readable.set)
        try:
            async with asyncio.timeout(seconds):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(connection.fileno())
        return True

    def use(self, action: Callable[[BoundedConnection], object]) -> bool:
        """Do something on the connection, made if need be; false if that failed, or a lock was not free in time."""
        if self._settings is None or (self._connection is None and time.monotonic() < self._not_before):
            return False
        try:
            if self._connection is None:
                self._connection = listen(self._settings, self._channel)
            action(self._connection)
        except LockNotAvailable:
            return False
        except (Error, GrantwireError) as error:
            reason = str(error).partition("\n")[0]
            logger.warning("could not listen, polling instead", channel=self._channel, reason=reason)
            self._not_before = time.monotonic() + _RECONNECT_SECONDS
            self.close()
            return False
        return True

    def close(self) -> None:
        """Drop the connection: a frozen sandbox must keep no lock, and must not pile up notifications."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _drain(connection: BoundedConnection) -> None:
    """Take every notification that has come: one or many, there is something to do."""
    for _ in connection.notifies(timeout=0):
        pass
