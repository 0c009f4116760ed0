"""Locks in Redis or Valkey, on top of the client library's own: a key with a time to live that bears its owner's token.

The server that the stores need is needed here too: one primary, `noeviction`. It replicates asynchronously, so that a
failover may give a lock to a second owner; where that is too much, use PostgreSQL.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire_idempotency.locks.interface import LockManager
from grantwire_idempotency.optional import needs
from grantwire_idempotency.wiring import require

with needs("redis", for_what="RedisLocks"):
    from redis.exceptions import LockError
    from redis.lock import Lock as LibraryLock

    from grantwire_idempotency.stores.redis import translating

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from redis import Redis, RedisCluster


class RedisLocks(LockManager):
    """Locks in the keys `<prefix><key>`, which the server lets end by itself. For any threads, as the client is."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "lock:",
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(sleep=sleep, monotonic=monotonic)
        require((client is not None, "RedisLocks needs a client"))
        self._client = client
        self._prefix = prefix

    def _take(self, key: str, token: str, ttl: timedelta) -> _OwnedKey | None:
        # A lock is one object with one token, whichever thread uses it.
        lock = LibraryLock(self._client, f"{self._prefix}{key}", timeout=ttl.total_seconds(), thread_local=False)
        with translating():
            if lock.acquire(blocking=False, token=token):
                return _OwnedKey(lock, token)
            # A client that repeats a command whose answer was lost meets its own token.
            lock.local.token = token.encode()
            return _OwnedKey(lock, token) if lock.owned() else None


@dataclass(frozen=True, slots=True)
class _OwnedKey:
    """A key as long as it bears the owner's token; the library compares and changes it in one step."""

    lock: LibraryLock
    token: str

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        with translating():
            try:
                return self.lock.extend(ttl.total_seconds(), replace_ttl=True)
            except LockError:
                return False

    def release(self) -> bool:
        """See `Lease`; the library's `release` forgets the token even if the server did not answer."""
        with translating():
            try:
                self.lock.do_release(self.token)
            except LockError:
                return False
        return True
