"""Waking a relay in milliseconds without a cost to the grants (O9).

An enqueue notifies only if it can share the lock `AWAKE`. A relay that is awake holds it, finds events by polling
quickly, and lets it go before it sleeps. Among relays that overlap, one has the lead and may hold the lock; the others
poll. Both locks and LISTEN belong to a session, so they need a direct connection of their own, not a pooler's.

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

# ASCII "gwawake!", as in outbox_enqueue, and "gwrelay!".
AWAKE = 0x67776177616B6521
LEAD = 0x677772656C617921

# A waiting request keeps new enqueues from sharing the lock, so it is granted when those under way have committed.
_PREPARE = "SET lock_timeout = '50ms'"
_LISTEN = "LISTEN outbox_events"
_TAKE_LEAD = "SELECT pg_try_advisory_lock(%s)"
_STAY_AWAKE = "SELECT pg_advisory_lock(%s)"
_FALL_ASLEEP = "SELECT pg_advisory_unlock(%s)"

# How long to leave a connection, or a lock, alone that could not be had.
_PAUSE_SECONDS = 5.0


class Wakeup:
    """One relay's sleep; `settings` is None where there is only polling. It never raises."""

    def __init__(self, settings: DatabaseSettings | None) -> None:
        self._settings = settings
        self._connection: BoundedConnection | None = None
        self._leads = False
        self._no_connection_before = self._no_lock_before = 0.0
        self.awake = False

    def stay_awake(self) -> None:
        """Take the lock, if no other relay has the lead: enqueues need not notify from now on."""
        if not self.awake and time.monotonic() >= self._no_lock_before:
            self._guarded(self._take_lock)

    def fall_asleep(self) -> None:
        """Let the lock go: enqueues notify again. What they committed before must be looked for once more."""
        if self.awake:
            self.awake = False
            self._guarded(lambda connection: connection.execute(_FALL_ASLEEP, (AWAKE,)))

    async def wait(self, seconds: float) -> None:
        """Sleep until an enqueue notifies, at most so long; the event loop goes on with its other work."""
        self._guarded(lambda _: None)
        if self._connection is None:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._connection.fileno(), readable.set)
        try:
            async with asyncio.timeout(seconds):
                await readable.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(self._connection.fileno())
        self._guarded(_drain)

    def close(self) -> None:
        """Let everything go. A sandbox that is frozen must not keep the lock, nor the server's notifications."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._leads = self.awake = False

    def _take_lock(self, connection: BoundedConnection) -> None:
        if not self._leads:
            row = connection.execute(_TAKE_LEAD, (LEAD,)).fetchone()
            self._leads = row == (True,)
        if self._leads:
            connection.execute(_STAY_AWAKE, (AWAKE,))
            self.awake = True

    def _guarded(self, use: Callable[[BoundedConnection], object]) -> None:
        """Use the connection, made if need be; one that failed, or a lock that was not to be had, rests for a while."""
        if self._settings is None or (self._connection is None and time.monotonic() < self._no_connection_before):
            return
        try:
            if self._connection is None:
                self._connection = _listen(self._settings)
            use(self._connection)
        except psycopg.errors.LockNotAvailable:
            self._no_lock_before = time.monotonic() + _PAUSE_SECONDS
        except (psycopg.Error, GrantwireError) as error:
            log.warning("no wake-up, polling instead", reason=str(error).partition("\n")[0])
            self._no_connection_before = time.monotonic() + _PAUSE_SECONDS
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
