"""A store in the memory of one process: for tests, and for jobs that only one process runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import ConfigError
from grantwire_idempotency.optional import needs
from grantwire_idempotency.stores.interface import (
    Duplicate,
    InProgress,
    New,
    Record,
    Status,
    lifetime,
    storable_error,
    storable_result,
    taken,
)

with needs("cachetools", for_what="MemoryStore"):
    from cachetools import TLRUCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.stores.interface import Check, Key


@dataclass(frozen=True, slots=True)
class _Held:
    """A claim, a completed record with its result, or a failure with its error; and when it ends."""

    until: float
    token: str
    mark: int | None
    text: str | None = None


class MemoryStore:
    """Keeps every promise of a store within one process, for any number of threads.

    Of completed records it remembers the `capacity` that were used last, and of failures as many. Claims are never
    forgotten before their time.
    """

    def __init__(self, capacity: int = 10_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        if capacity < 1:
            raise ConfigError(["the capacity of a MemoryStore must be at least 1"])
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: dict[str, _Held] = {}
        self._records: TLRUCache[str, _Held] = TLRUCache(capacity, lambda _key, held, _now: held.until, timer=clock)
        self._failures: TLRUCache[str, _Held] = TLRUCache(capacity, lambda _key, held, _now: held.until, timer=clock)

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        new = New(key)
        with self._lock:
            record = self._records.get(key.value)
            if record is not None and key.covered_by(record.mark):
                return Duplicate(key, record.text)
            now = self._clock()
            claim = self._claim(key, now)
            if claim is not None:
                return InProgress(key, timedelta(seconds=claim.until - now))
            if len(self._claims) >= self._capacity:
                self._forget_dead_claims(now)
            self._claims[key.value] = self._held(new, None, ttl)
        return new

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        result = storable_result(result)
        with self._lock:
            record = self._records.get(claim.key.value)
            if record is not None and record.token == claim.token:
                return
            if self._taken_from(claim):
                raise taken()
            self._claims.pop(claim.key.value, None)
            self._failures.pop(claim.key.value, None)
            self._records[claim.key.value] = self._held(claim, result, ttl)

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with self._lock:
            if not self._taken_from(claim):
                self._claims.pop(claim.key.value, None)
                self._failures[claim.key.value] = self._held(claim, storable_error(error), ttl)

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        with self._lock:
            claim = self._claim(key, self._clock())
            record, failure = self._records.get(key.value), self._failures.get(key.value)
        error = None if failure is None else failure.text
        if claim is not None:
            return Record(Status.IN_PROGRESS, mark=claim.mark)
        if record is not None:
            return Record(Status.COMPLETED, record.text, error, record.mark)
        return None if failure is None else Record(Status.FAILED, error=error)

    def cleanup(self) -> int:
        """See `Store`."""
        with self._lock:
            forgotten = self._forget_dead_claims(self._clock())
            return forgotten + len(self._records.expire()) + len(self._failures.expire())

    def _taken_from(self, claim: New) -> bool:
        other, record = self._claim(claim.key, self._clock()), self._records.get(claim.key.value)
        return (other is not None and other.token != claim.token) or (
            record is not None and claim.key.covered_by(record.mark)
        )

    def _claim(self, key: Key, now: float) -> _Held | None:
        claim = self._claims.get(key.value)
        return claim if claim is not None and claim.until > now else None

    def _forget_dead_claims(self, now: float) -> int:
        """They are of no use to anybody, and nobody else would ever remove them."""
        dead = [value for value, claim in self._claims.items() if claim.until <= now]
        for value in dead:
            del self._claims[value]
        return len(dead)

    def _held(self, claim: New, text: str | None, ttl: timedelta) -> _Held:
        return _Held(self._clock() + lifetime(ttl).total_seconds(), claim.token, claim.key.mark, text)
