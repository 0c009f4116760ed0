"""Wakes a sleeping relay within milliseconds, at almost no cost to the grants (O9, ADR 0021).

A NOTIFY in every transaction would make all commits wait for each other, so an enqueue notifies only if a relay sleeps.
A sleeping relay holds the advisory lock ASLEEP exclusively. An enqueue tries to share that lock, and notifies if it
cannot. While the relay is awake, or if there is none, no enqueue notifies.

If several relays run, one of them is the leader and may sleep until it is notified. The others poll often. Both locks
belong to the session of the listener, so they need a direct connection, not one through a connection pooler.

The wake-up only saves time: without it, or if its connection fails, the relay polls at its poll interval.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from grantwire.workers.listener import Listener

if TYPE_CHECKING:
    from grantwire.database import Connection, DatabaseSettings

# Ids of advisory locks: ASCII "gwasleep", as in outbox_enqueue, and "gwrelay!".
ASLEEP_LOCK_ID = 0x6777_6173_6C65_6570
LEADER_LOCK_ID = 0x677772656C617921

# PostgreSQL grants the lock as soon as the transactions that share it have committed: while the relay waits for it, no
# new enqueue can share it.
_BECOME_LEADER = "SELECT pg_try_advisory_lock(%s), set_config('lock_timeout', '50ms', false)"
_TAKE_LOCK = "SELECT pg_advisory_lock(%s)"
_RELEASE_LOCK = "SELECT pg_advisory_unlock(%s)"

# Poll interval while busy; idle time before the relay sleeps; poll interval of a relay that is not the leader.
_BUSY_POLL_SECONDS = 0.005
_IDLE_SECONDS = 0.05
_FOLLOWER_POLL_SECONDS = 0.05
# Delay before the next attempt to take the lock, after it was not free in time.
_LOCK_RETRY_SECONDS = 1.0


class Wakeup:
    """Puts one relay to sleep and wakes it; without `settings` the relay only polls. No method raises an error."""

    def __init__(self, settings: DatabaseSettings | None) -> None:
        self._listener = Listener(settings, "outbox_events")
        self._is_leader = False
        self._next_lock_attempt_at = 0.0
        self._last_work_at = 0.0
        self.is_asleep = False

    def wake_up(self) -> None:
        """Note that there is work, and release the lock, so that enqueues do not notify."""
        self._last_work_at = time.monotonic()
        if self.is_asleep:
            self.is_asleep = False
            self._listener.try_run(lambda connection: connection.execute(_RELEASE_LOCK, (ASLEEP_LOCK_ID,)))

    async def wait(self, seconds: float) -> None:
        """Wait for work, at most for `seconds`: briefly while the relay is busy, then asleep until an enqueue notifies.

        Return immediately after taking the lock. An event that was committed before that sent no notification, so the
        relay must poll once more before it sleeps.
        """
        if self._listener.enabled and time.monotonic() - self._last_work_at < _IDLE_SECONDS:
            await asyncio.sleep(min(_BUSY_POLL_SECONDS, seconds))
        elif self.is_asleep or not self.fall_asleep():
            is_follower = self._listener.connected and not self.is_asleep
            if await self._listener.wait(min(seconds, _FOLLOWER_POLL_SECONDS) if is_follower else seconds):
                self.wake_up()
            self._forget_lost_locks()

    def fall_asleep(self) -> bool:
        """Take the lock, so that enqueues notify from now on.

        Return whether the relay is asleep: not if the lock was not free in time, or if there is no connection.
        """
        may_try = not self.is_asleep and time.monotonic() >= self._next_lock_attempt_at
        if may_try and not self._listener.try_run(self._take_locks):
            self._next_lock_attempt_at = time.monotonic() + _LOCK_RETRY_SECONDS if self._listener.connected else 0.0
            self._forget_lost_locks()
        return self.is_asleep

    def close(self) -> None:
        """Close the connection, which releases both locks. A frozen sandbox must not keep them."""
        self._listener.close()
        self._forget_lost_locks()

    def _take_locks(self, connection: Connection) -> None:
        if not self._is_leader:
            row = connection.execute(_BECOME_LEADER, (LEADER_LOCK_ID,)).fetchone()
            self._is_leader = row is not None and row[0] is True
        if self._is_leader:
            connection.execute(_TAKE_LOCK, (ASLEEP_LOCK_ID,))
            self.is_asleep = True

    def _forget_lost_locks(self) -> None:
        """Reset the state if the connection was lost, because its locks are lost with it."""
        if not self._listener.connected:
            self._is_leader = self.is_asleep = False
