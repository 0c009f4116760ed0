"""Locks in Redis or Valkey: a key with a time to live and the owner's token. Each step is one script.

The scripts of redis-py's own lock give no fencing number, which must be drawn in the same step as the lock.

The server has the same requirements as for RedisStore: one primary, `noeviction`. Replication is asynchronous, so after
a failover a lock can have two owners. Use PostgreSQL if that is not acceptable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.foundation.wiring import require
from grantwire_idempotency._internal.locks.interface import LockManager

with optional_package("redis", used_by="RedisLocks"):
    from grantwire_idempotency._internal.redis.scripts import FENCE, Script, run_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis, RedisCluster

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# The owner may take its own lock again, because a command is sent twice if its response was lost.
_ACQUIRE = Script.of(
    FENCE
    + """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
"""
)

_EXTEND = Script.of("""
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0
""")

_RELEASE = Script.of("""
return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0
""")


class RedisLocks(LockManager):
    """Locks in the keys `<prefix><key>`, which the server deletes when they expire. Thread-safe."""

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "lock:",
        logger: LibraryLogger | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logger=logger, sleep=sleep, monotonic=monotonic)
        require((client is not None, "RedisLocks requires a client"))
        self._client = client
        self._prefix = prefix

    def _try_acquire(self, key: str, token: str, ttl: timedelta) -> _OwnedKey | None:
        owned = _OwnedKey(self._client, f"{self._prefix}{key}", token, 0, self._logger)
        fence = owned.run(_ACQUIRE, _milliseconds(ttl))
        return _OwnedKey(owned.client, owned.name, token, fence, self._logger) if fence else None


@dataclass(frozen=True, slots=True)
class _OwnedKey:
    """A Redis key; valid while it has the owner's token. The scripts compare and change it atomically."""

    client: Redis | RedisCluster
    name: str
    token: str
    fence: int
    logger: LibraryLogger | None

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        return bool(self.run(_EXTEND, _milliseconds(ttl)))

    def release(self) -> bool:
        """See `Lease`."""
        return bool(self.run(_RELEASE))

    def run(self, script: Script, *arguments: Any) -> int:
        """Run a script and return its response."""
        return int(run_script(self.client, script, [self.name], [self.token, *arguments], self.logger))


def _milliseconds(ttl: timedelta) -> int:
    return ttl // timedelta(milliseconds=1)
