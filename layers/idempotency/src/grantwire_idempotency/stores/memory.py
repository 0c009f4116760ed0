"""A store in the memory of one process, for tests and for jobs that run in a single process."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import ConfigError
from grantwire_idempotency.optional import optional_package
from grantwire_idempotency.stores.interface import (
    Claim,
    Duplicate,
    InProgress,
    KeyState,
    KeyStatus,
    claim_lost_error,
    clamp_ttl,
    truncate_error,
    validate_result,
)

with optional_package("cachetools", used_by="MemoryStore"):
    from cachetools import TLRUCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.stores.interface import CheckResult, Key


@dataclass(frozen=True, slots=True)
class _Entry:
    """A claim, a completion with its result, or a failure with its error."""

    expires_at: float
    token: str
    mark: int | None
    text: str | None = None


class MemoryStore:
    """A thread-safe store within one process.

    It keeps the `capacity` most recently used completions, and as many failures. A claim is never evicted before it
    expires.
    """

    def __init__(self, capacity: int = 10_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        if capacity < 1:
            raise ConfigError(["the capacity of a MemoryStore must be at least 1"])
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: dict[str, _Entry] = {}
        self._completions: TLRUCache[str, _Entry] = TLRUCache(capacity, _expiry, timer=clock)
        self._failures: TLRUCache[str, _Entry] = TLRUCache(capacity, _expiry, timer=clock)

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """See `Store`."""
        claim = Claim(key)
        with self._lock:
            completion = self._completions.get(key.value)
            if completion is not None and key.is_covered_by(completion.mark):
                return Duplicate(key, completion.text)
            now = self._clock()
            live = self._live_claim(key, now)
            if live is not None:
                return InProgress(key, timedelta(seconds=live.expires_at - now))
            if len(self._claims) >= self._capacity:
                self._delete_expired_claims(now)
            self._claims[key.value] = self._entry(claim, None, ttl)
        return claim

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        result = validate_result(result)
        with self._lock:
            completion = self._completions.get(claim.key.value)
            if completion is not None and completion.token == claim.token:
                return
            if self._is_lost(claim):
                raise claim_lost_error()
            self._claims.pop(claim.key.value, None)
            self._failures.pop(claim.key.value, None)
            self._completions[claim.key.value] = self._entry(claim, result, ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with self._lock:
            if not self._is_lost(claim):
                self._claims.pop(claim.key.value, None)
                self._failures[claim.key.value] = self._entry(claim, truncate_error(error), ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        with self._lock:
            claim = self._live_claim(key, self._clock())
            completion, failure = self._completions.get(key.value), self._failures.get(key.value)
        error = None if failure is None else failure.text
        if claim is not None:
            return KeyState(KeyStatus.IN_PROGRESS, mark=claim.mark)
        if completion is not None:
            return KeyState(KeyStatus.COMPLETED, completion.text, error, completion.mark)
        return None if failure is None else KeyState(KeyStatus.FAILED, error=error)

    def cleanup(self) -> int:
        """See `Store`."""
        with self._lock:
            deleted = self._delete_expired_claims(self._clock())
            return deleted + len(self._completions.expire()) + len(self._failures.expire())

    def _is_lost(self, claim: Claim) -> bool:
        live, completion = self._live_claim(claim.key, self._clock()), self._completions.get(claim.key.value)
        return (live is not None and live.token != claim.token) or (
            completion is not None and claim.key.is_covered_by(completion.mark)
        )

    def _live_claim(self, key: Key, now: float) -> _Entry | None:
        claim = self._claims.get(key.value)
        return claim if claim is not None and claim.expires_at > now else None

    def _delete_expired_claims(self, now: float) -> int:
        expired = [value for value, claim in self._claims.items() if claim.expires_at <= now]
        for value in expired:
            del self._claims[value]
        return len(expired)

    def _entry(self, claim: Claim, text: str | None, ttl: timedelta) -> _Entry:
        return _Entry(self._clock() + clamp_ttl(ttl).total_seconds(), claim.token, claim.key.mark, text)


def _expiry(_key: str, entry: _Entry, _now: float) -> float:
    return entry.expires_at
