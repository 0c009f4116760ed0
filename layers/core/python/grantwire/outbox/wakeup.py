"""Waking a relay in milliseconds without a cost to the grants (O9, ADR 0021).

A relay that sleeps holds the lock `ASLEEP`, and an enqueue notifies only if it cannot share it. While a relay is awake,
or where there is none, nobody notifies. Among relays that overlap, one has the lead and may sleep until it is told; the
others look often. Both locks and LISTEN belong to a session, so they need a direct connection of their own, not a
pooler's.

All of this only saves time: without it, or when its connection fails, the relay polls at its poll interval.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import psycopg

from grantwire.database import connect
from grantwire.errors import GrantwireError
from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.database import BoundedConnection, DatabaseSettings

# ASCII "gwasleep", as in outbox_enqueue, and "gwrelay!".
ASLEEP = 0x6777_6173_6C65_6570
LEAD = 0x677772656C617921

# A waiting request keeps new enqueues from sharing the lock, so it is granted when those under way have committed.
_PREPARE = "SET lock_timeout = '50ms'"
_LISTEN = "LISTEN outbox_events"
_TAKE_LEAD = "SELECT pg_try_advisory_lock(%s)"
_FALL_ASLEEP = "SELECT pg_advisory_lock(%s)"
_WAKE_UP = "SELECT pg_advisory_unlock(%s)"

# How long to leave a connection alone that could not be had, or a lock.
_NO_CONNECTION_SECONDS = 5.0
_NO_LOCK_SECONDS = 1.0
# How often a relay looks that nobody will tell, although it could be told: for the others' moment of parting.
_WATCHFUL_SECONDS = 0.05


class Wakeup:
    """One relay's sleep; `settings` is None where there is only polling. It never raises."""

    def __init__(self, settings: DatabaseSettings | None) -> None:
        self._settings = settings
        self._connection: BoundedConnection | None = None
        self._leads = False
        self._no_connection_before = self._no_lock_before = 0.0
        self.asleep = False

    @property
    def enabled(self) -> bool:
        """Whether there is more than polling."""
        return self._settings is not None

    def fall_asleep(self) -> bool:
        """Take the lock, so that enqueues notify from now on; false if it was not to be had.

        What was committed before, without a notification, must be looked for once more.
        """
        if not self.asleep and time.monotonic() >= self._no_lock_before:
            self._guarded(self._take_lock)
        return self.asleep

    def wake_up(self) -> None:
        """Let the lock go: from now on enqueues need not notify."""
        if self.asleep:
            self.asleep = False
            self._guarded(lambda connection: connection.execute(_WAKE_UP, (ASLEEP,)))

    async def wait(self, seconds: float) -> None:
        """Sleep until an enqueue notifies, at most so long; the event loop goes on with its other work."""
        if self._connection is None:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._connection.fileno(), readable.set)
        try:
            async with asyncio.timeout(seconds if self.asleep else min(seconds, _WATCHFUL_SECONDS)):
                await readable.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(self._connection.fileno())
        self._guarded(_drain)
        self.wake_up()

    def close(self) -> None:
        """Let everything go. A sandbox that is frozen must not keep the lock, nor the server's notifications."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._leads = self.asleep = False

    def _take_lock(self, connection: BoundedConnection) -> None:
        if not self._leads:
            row = connection.execute(_TAKE_LEAD, (LEAD,)).fetchone()
            self._leads = row == (True,)
        if self._leads:
            connection.execute(_FALL_ASLEEP, (ASLEEP,))
            self.asleep = True

    def _guarded(self, use: Callable[[BoundedConnection], object]) -> None:
        """Use the connection, made if need be; one that failed, or a lock that was not to be had, rests for a while."""
        if self._settings is None or (self._connection is None and time.monotonic() < self._no_connection_before):
            return
        try:
            if self._connection is None:
                self._connection = _listen(self._settings)
            use(self._connection)
        except psycopg.errors.LockNotAvailable:
            self._no_lock_before = time.monotonic() + _NO_LOCK_SECONDS
        except (psycopg.Error, GrantwireError) as error:
            log.warning("no wake-up, polling instead", reason=str(error).partition("\n")[0])
            self._no_connection_before = time.monotonic() + _NO_CONNECTION_SECONDS
            self.close()


def _listen(settings: DatabaseSettings) -> BoundedConnection:
    connection = connect(settings, application_name="grantwire-wakeup", listening=True)
    connection.execute(_PREPARE)
    connection.execute(_LISTEN)
    return connection


def _drain(connection: BoundedConnection) -> None:
    """One notification or many: there is something to do."""
    connection.pgconn.consume_input()
    while connection.pgconn.notifies() is not None:
        pass
