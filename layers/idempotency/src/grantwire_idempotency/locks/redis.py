"""Locks in Redis or Valkey, built on the client library's lock: a key with a time to live and the owner's token.

The server has the same requirements as for RedisStore: one primary, `noeviction`. Replication is asynchronous, so after
a failover a lock can have two owners. Use PostgreSQL if that is not acceptable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire_idempotency.locks.interface import LockManager
from grantwire_idempotency.optional import optional_package
from grantwire_idempotency.wiring import require

with optional_package("redis", used_by="RedisLocks"):
    from redis.exceptions import LockError
    from redis.lock import Lock as LibraryLock

    from grantwire_idempotency.stores.redis import wrap_exceptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from redis import Redis, RedisCluster


class RedisLocks(LockManager):
    """Locks in the keys `<prefix><key>`, which the server deletes when they expire. Thread-safe."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "lock:",
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(sleep=sleep, monotonic=monotonic)
        require((client is not None, "RedisLocks requires a client"))
        self._client = client
        self._prefix = prefix

    def _try_acquire(self, key: str, token: str, ttl: timedelta) -> _OwnedKey | None:
        # One token for all threads that use the lock object.
        lock = LibraryLock(self._client, f"{self._prefix}{key}", timeout=ttl.total_seconds(), thread_local=False)
        with wrap_exceptions():
            if lock.acquire(blocking=False, token=token):
                return _OwnedKey(lock, token)
            # The client repeats a command if its response was lost. The first one may have set this token.
            lock.local.token = token.encode()
            return _OwnedKey(lock, token) if lock.owned() else None


@dataclass(frozen=True, slots=True)
class _OwnedKey:
    """A Redis key; valid while it has the owner's token. The client library compares and changes it atomically."""

    lock: LibraryLock
    token: str

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        with wrap_exceptions():
            try:
                return self.lock.extend(ttl.total_seconds(), replace_ttl=True)
            except LockError:
                return False

    def release(self) -> bool:
        """See `Lease`. Does not call the library's `release`, which loses the token if the server is unavailable."""
        with wrap_exceptions():
            try:
                self.lock.do_release(self.token)
            except LockError:
                return False
        return True
