"""A store in the memory of one process: for tests, and for jobs that only one process runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from cachetools import TLRUCache

from grantwire.errors import LeaseLostError
from grantwire.idempotency.stores.interface import Duplicate, InProgress, New, Record, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire.idempotency.stores.interface import Check, Key


@dataclass(frozen=True, slots=True)
class _Held:
    """A claim with its token, or a record; and when it ends."""

    record: Record
    until: float
    token: str = ""


class MemoryStore:
    """Keeps every promise of a store within one process, for the last `capacity` keys; claims are never evicted."""

    def __init__(self, capacity: int = 10_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: dict[str, _Held] = {}
        self._records: TLRUCache[str, _Held] = TLRUCache(capacity, lambda _key, held, _now: held.until, timer=clock)

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        with self._lock:
            completed = self._completed(key)
            if completed is not None and key.covered_by(completed.record.mark):
                return Duplicate(key, completed.record.result)
            claim = self._claim(key)
            if claim is not None:
                return InProgress(key, timedelta(seconds=claim.until - self._clock()))
            new = New(key)
            self._claims[key.value] = _Held(Record(Status.IN_PROGRESS, mark=key.mark), self._end(ttl), new.token)
            return new

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        key = claim.key
        with self._lock:
            other, completed = self._claim(key), self._completed(key)
            taken = other is not None and other.token != claim.token
            if taken or (completed is not None and key.covered_by(completed.record.mark)):
                raise LeaseLostError("somebody else has the key, or has completed it")
            self._claims.pop(key.value, None)
            self._records[key.value] = _Held(Record(Status.COMPLETED, result, mark=key.mark), self._end(ttl))

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        key = claim.key
        with self._lock:
            held = self._claims.get(key.value)
            if held is None or held.token != claim.token:
                return
            del self._claims[key.value]
            completed = self._completed(key)
            if completed is None:
                self._records[key.value] = _Held(Record(Status.FAILED, error=error), self._end(ttl))
            else:
                self._records[key.value] = replace(completed, record=replace(completed.record, error=error))

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        with self._lock:
            held = self._claim(key) or self._records.get(key.value)
            return None if held is None else held.record

    def cleanup(self) -> int:
        """See `Store`."""
        with self._lock:
            ended = [value for value, claim in self._claims.items() if claim.until <= self._clock()]
            for value in ended:
                del self._claims[value]
            return len(ended) + len(self._records.expire())

    def _claim(self, key: Key) -> _Held | None:
        claim = self._claims.get(key.value)
        return claim if claim is not None and claim.until > self._clock() else None

    def _completed(self, key: Key) -> _Held | None:
        held = self._records.get(key.value)
        return held if held is not None and held.record.status is Status.COMPLETED else None

    def _end(self, ttl: timedelta) -> float:
        return self._clock() + ttl.total_seconds()
