"""A store in the memory of one process, for tests and for jobs that run in a single process."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.wiring import count_rule, require
from grantwire_idempotency._internal.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    completion_ttl,
    new_claim,
    truncate_error,
    validate_result,
)
from grantwire_idempotency._internal.stores.lru import LruMapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.stores.interface import CheckResult, Key


@dataclass(frozen=True, slots=True)
class _Entry:
    """A claim, a completion with its result, or a failure with its error."""

    expires_at: float
    token: str
    mark: int | None
    text: str | None = None
    content_hash: str = ""
    text_expires_at: float = math.inf
    stored_at: float = 0

    def content_hash_for(self, key: Key) -> str:
        """Return the content hash for a key that can be compared with it."""
        return self.content_hash if self.mark == key.mark else ""


class MemoryStore:
    """A thread-safe store within one process.

    It keeps the `capacity` most recently used completions, and as many failures. A claim is never evicted before it
    expires. A process that is forked continues with its own copy: the processes do not know each other's keys.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        fail_mode: FailMode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require(count_rule("capacity", capacity))
        self.fail_mode = fail_mode
        self._capacity = capacity
        self._clock = clock
        self._fence = 0
        self._lock = ForkSafeLock()
        self._claims: dict[str, _Entry] = {}
        self._completions: LruMapping[_Entry] = LruMapping(capacity)
        self._failures: LruMapping[_Entry] = LruMapping(capacity)

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        claim = new_claim(key, token)
        with self._lock:
            now = self._clock()
            completion, failure = self._get(self._completions, key), self._get(self._failures, key)
            if completion is not None and key.is_covered_by(completion.mark):
                return Duplicate(key, _live_text(completion, now), completion.content_hash_for(key))
            live = self._live_claim(key, now)
            if live is not None and live.token != claim.token:
                return InProgress(key, timedelta(seconds=live.expires_at - now), live.content_hash_for(key))
            if len(self._claims) >= self._capacity:
                self._delete_expired_claims(now)
            self._claims[key.value] = self._entry(claim, None, clamp_ttl(ttl))
            self._fence += 1
            return replace(claim, fence=self._fence, last_error=None if failure is None else failure.text)

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        result = validate_result(result)
        with self._lock:
            completion = self._get(self._completions, claim.key)
            if completion is not None and completion.token == claim.token:
                return
            live = self._live_claim(claim.key, self._clock())
            if live is None or self._is_lost(claim):
                raise claim_lost_error()
            del self._claims[claim.key.value]
            self._failures.pop(claim.key.value)
            entry = self._entry(claim, result, completion_ttl(claim.key, ttl, order_ttl))
            text_expires_at = self._clock() + clamp_ttl(ttl).total_seconds()
            entry = replace(entry, text_expires_at=text_expires_at, stored_at=self._clock())
            self._completions.put(claim.key.value, entry)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with self._lock:
            if not self._is_lost(claim):
                self._claims.pop(claim.key.value, None)
                self._failures.put(claim.key.value, self._entry(claim, truncate_error(error), clamp_ttl(ttl)))

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        with self._lock:
            live = self._live_claim(claim.key, self._clock())
            if live is None or live.token != claim.token:
                raise claim_lost_error()
            self._claims[claim.key.value] = self._entry(claim, None, clamp_ttl(ttl))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        with self._lock:
            now = self._clock()
            claim = self._live_claim(key, now)
            completion, failure = self._get(self._completions, key), self._get(self._failures, key)
        error = None if failure is None else failure.text
        if claim is not None:
            return KeyState(KeyStatus.IN_PROGRESS, mark=claim.mark, content_hash=claim.content_hash)
        if completion is not None:
            text = _live_text(completion, now)
            return KeyState(KeyStatus.COMPLETED, text, error, completion.mark, completion.content_hash)
        return None if failure is None else KeyState(KeyStatus.FAILED, error=error)

    def cleanup(self) -> int:
        """See `Store`."""
        with self._lock:
            now = self._clock()
            deleted = self._delete_expired_claims(now)
            for entries in (self._completions, self._failures):
                for value, entry in entries.items():
                    if entry.expires_at <= now:
                        entries.pop(value)
                        deleted += 1
            return deleted

    def delete_completed(self, age: timedelta) -> int:
        """Delete the completions that are older than `age`, live or not, and return how many were deleted."""
        with self._lock:
            limit = self._clock() - age.total_seconds()
            old = [value for value, entry in self._completions.items() if entry.stored_at < limit]
            for value in old:
                self._completions.pop(value)
            return len(old)

    def _is_lost(self, claim: Claim) -> bool:
        live, completion = self._live_claim(claim.key, self._clock()), self._get(self._completions, claim.key)
        return (live is not None and live.token != claim.token) or (
            completion is not None and claim.key.is_covered_by(completion.mark)
        )

    def _get(self, entries: LruMapping[_Entry], key: Key) -> _Entry | None:
        entry = entries.get(key.value)
        return entry if entry is not None and entry.expires_at > self._clock() else None

    def _live_claim(self, key: Key, now: float) -> _Entry | None:
        claim = self._claims.get(key.value)
        return claim if claim is not None and claim.expires_at > now else None

    def _delete_expired_claims(self, now: float) -> int:
        expired = [value for value, claim in self._claims.items() if claim.expires_at <= now]
        for value in expired:
            del self._claims[value]
        return len(expired)

    def _entry(self, claim: Claim, text: str | None, ttl: timedelta) -> _Entry:
        expires_at = self._clock() + ttl.total_seconds()
        return _Entry(expires_at, claim.token, claim.key.mark, text, claim.key.content_hash)


def _live_text(entry: _Entry, now: float) -> str | None:
    return entry.text if entry.text_expires_at > now else None


class AsyncMemoryStore:
    """A `MemoryStore` for asyncio. It never waits, so its methods do not give way to other tasks."""

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        fail_mode: FailMode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = MemoryStore(capacity, clock=clock)
        self.fail_mode = fail_mode

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return self._store.check(key, ttl, token)

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._store.store_result(claim, result, ttl, order_ttl)

    async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.store_failure(claim, error, ttl)

    async def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.extend(claim, ttl)

    async def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return self._store.get_result(key)

    async def cleanup(self) -> int:
        """See `Store`."""
        return self._store.cleanup()
