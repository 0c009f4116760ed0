"""Wakes a relay in milliseconds without a cost to the grants (O9, ADR 0021).

A relay that sleeps holds the lock `ASLEEP`, and an enqueue notifies only if it cannot share that lock. While a relay is
awake, or where there is none, no enqueue notifies. Of relays that overlap, one is the leader and may sleep until it is
notified; the others poll often. Both locks belong to the listener's session, so they need a direct connection, not a
pooler's.

All of this only saves time: without it, or when its connection fails, the relay polls at its poll interval.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from grantwire.workers.listener import Listener

if TYPE_CHECKING:
    from grantwire.database import BoundedConnection, DatabaseSettings

# ASCII "gwasleep", as in outbox_enqueue, and "gwrelay!".
ASLEEP = 0x6777_6173_6C65_6570
LEADER = 0x677772656C617921

# A waiting request keeps new enqueues from sharing the lock, so it is granted when those under way have committed.
_BECOME_LEADER = "SELECT pg_try_advisory_lock(%s), set_config('lock_timeout', '50ms', false)"
_TAKE_LOCK = "SELECT pg_advisory_lock(%s)"
_RELEASE_LOCK = "SELECT pg_advisory_unlock(%s)"

# Poll interval while busy; idle time before the relay sleeps; poll interval of a relay that is not the leader.
_BUSY_POLL_SECONDS = 0.005
_IDLE_SECONDS = 0.05
_FOLLOWER_POLL_SECONDS = 0.05
# How long to leave the lock alone after it was not free in time.
_RETRY_LOCK_SECONDS = 1.0


class Wakeup:
    """One relay's sleep; `settings` is None where there is only polling. It never raises."""

    def __init__(self, settings: DatabaseSettings | None) -> None:
        self._listener = Listener(settings, "outbox_events")
        self._leads = False
        self._lock_not_before = 0.0
        self._worked_at = 0.0
        self.asleep = False

    def wake_up(self) -> None:
        """There is work: release the lock, so that enqueues need not notify."""
        self._worked_at = time.monotonic()
        if self.asleep:
            self.asleep = False
            self._listener.try_run(lambda connection: connection.execute(_RELEASE_LOCK, (ASLEEP,)))

    async def wait(self, seconds: float) -> None:
        """Wait for work: briefly while busy, then asleep until an enqueue notifies, at most that long.

        Returns at once after it has taken the lock: what was committed before, without a notification, must be looked
        for once more before it sleeps.
        """
        if self._listener.enabled and time.monotonic() - self._worked_at < _IDLE_SECONDS:
            await asyncio.sleep(min(_BUSY_POLL_SECONDS, seconds))
        elif self.asleep or not self.fall_asleep():
            follows = self._listener.connected and not self.asleep
            if await self._listener.wait(min(seconds, _FOLLOWER_POLL_SECONDS) if follows else seconds):
                self.wake_up()
            self._forget_lost_locks()

    def fall_asleep(self) -> bool:
        """Take the lock, so that enqueues notify from now on; false if it was not free or there is no connection."""
        if (
            not self.asleep
            and time.monotonic() >= self._lock_not_before
            and not self._listener.try_run(self._take_locks)
        ):
            self._lock_not_before = time.monotonic() + _RETRY_LOCK_SECONDS if self._listener.connected else 0.0
            self._forget_lost_locks()
        return self.asleep

    def close(self) -> None:
        """Release everything. A frozen sandbox must not keep the lock."""
        self._listener.close()
        self._forget_lost_locks()

    def _take_locks(self, connection: BoundedConnection) -> None:
        if not self._leads:
            row = connection.execute(_BECOME_LEADER, (LEADER,)).fetchone()
            self._leads = row is not None and row[0] is True
        if self._leads:
            connection.execute(_TAKE_LOCK, (ASLEEP,))
            self.asleep = True

    def _forget_lost_locks(self) -> None:
        """The locks end with the connection."""
        if not self._listener.connected:
            self._leads = self.asleep = False
