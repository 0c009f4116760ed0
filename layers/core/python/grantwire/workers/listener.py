"""Wake-ups by PostgreSQL's LISTEN, with polling as the fallback.

LISTEN needs a connection that keeps its session, which RDS Proxy does not give; `DATABASE_LISTEN_HOST` names the host
to connect to instead. Every worker that listens also polls, so a lost notification delays work by one poll interval.
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

    from grantwire.database import Connection, DatabaseSettings

# Delay before the next connection attempt after a failure.
_RECONNECT_DELAY_SECONDS = 5.0


class Listener:
    """LISTEN on one channel over a separate connection. Without settings it only sleeps. It never raises."""

    def __init__(self, settings: DatabaseSettings | None, channel: LiteralString) -> None:
        self._settings = settings
        self._channel = channel
        self._connection: Connection | None = None
        self._next_connect_at = 0.0

    @property
    def enabled(self) -> bool:
        """Whether wake-ups are enabled; otherwise the worker only polls."""
        return self._settings is not None

    @property
    def connected(self) -> bool:
        """Whether there is a connection that receives notifications."""
        return self._connection is not None

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most `seconds`; return true if there may be work.

        That is the case after a notification, and when the connection was just made: commits before it sent this
        listener no notification.
        """
        if self._connection is None:
            if self.try_run(lambda _: None):
                return True
            await asyncio.sleep(seconds)
            return False
        return await self._wait_readable(self._connection, seconds) and self.try_run(_drain)

    async def _wait_readable(self, connection: Connection, seconds: float) -> bool:
        """Wait until the socket is readable, without blocking the event loop; false after `seconds`."""
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

    def try_run(self, action: Callable[[Connection], object]) -> bool:
        """Run `action` on the connection, connecting if needed; false if it failed or a lock was not available."""
        if self._settings is None or (self._connection is None and time.monotonic() < self._next_connect_at):
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
            self._next_connect_at = time.monotonic() + _RECONNECT_DELAY_SECONDS
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the connection, because a frozen execution environment must not hold locks or queue notifications."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _drain(connection: Connection) -> None:
    """Read all queued notifications; their number does not matter."""
    for _ in connection.notifies(timeout=0):
        pass
