"""Waits until the bridge says that there is something to deliver, or until it is time to look anyway.

LISTEN needs a connection that stays with its session, so not one through RDS Proxy: it has an address of its own and
can be switched off. A message that is missed costs one poll interval, nothing else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from grantwire.errors import RetryableError

if TYPE_CHECKING:
    from grantwire.database import Connection, Database

# A listener that cannot connect is not tried again before this.
_RETRY_SECONDS = 5.0


class Wakeup:
    """LISTEN on a connection of its own; without a database it just waits."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._listening: Connection | None = None
        self._not_before = 0.0

    def wait(self, seconds: float) -> None:
        """Return when woken, or after `seconds`; at once if it has only just begun to listen."""
        ends = time.monotonic() + seconds
        if self._database is not None and time.monotonic() >= self._not_before:
            try:
                with self._database.session() as connection:
                    if connection is not self._listening:
                        connection.execute("LISTEN notifications")
                        self._listening = connection
                        return
                    for _ in connection.notifies(timeout=seconds, stop_after=1):
                        return
            except RetryableError:
                self._not_before = time.monotonic() + _RETRY_SECONDS
        time.sleep(max(0.0, ends - time.monotonic()))

    def close(self) -> None:
        """Give the connection back: a sandbox that is frozen must not pile up the server's notifications."""
        self._listening = None
        if self._database is not None:
            self._database.close()
