"""Filters in front of a store: an in-process guess at which keys are completed (C10).

A filter can save work of the store and never decides. If it says that the key is completed, FilteredStore reads the
key's state before it claims anything, which is cheaper for a store whose check writes or takes several round trips. The
stores of this package answer almost every check in one round trip, so measure before you use a filter. A new key costs
nothing more.

A filter forgets keys, does not know keys that other processes completed, and a Bloom filter has false positives. None
of that changes a response: Duplicate and Claim always come from the store.

BloomFilter imports its library when it is created, so an application installs it only if it uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.foundation.wiring import count_rule, require, sync_store_rule
from grantwire_idempotency._internal.stores.interface import Duplicate, KeyStatus
from grantwire_idempotency._internal.stores.lru import LruMapping

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim, Key, KeyState, Store


class KeyFilter(Protocol):
    """A thread-safe, approximate set of completed keys."""

    def may_contain(self, value: str) -> bool:
        """Return whether the key may have been added. Both false positives and false negatives are allowed."""

    def add(self, value: str) -> None:
        """Add a completed key."""


class LruFilter:
    """Keeps the `capacity` most recently used keys, without false positives."""

    def __init__(self, capacity: int) -> None:
        require(count_rule("capacity", capacity))
        self._lock = ForkSafeLock()
        self._keys: LruMapping[bool] = LruMapping(capacity)

    def may_contain(self, value: str) -> bool:
        """See `KeyFilter`."""
        with self._lock:
            return self._keys.get(value) is not None

    def add(self, value: str) -> None:
        """See `KeyFilter`."""
        with self._lock:
            self._keys.put(value, True)


class BloomFilter:
    """Keeps many keys in a few bits each, with at most the given rate of false positives.

    It is cleared when it holds `expected_keys` keys, because the rate would rise beyond that.
    """

    def __init__(self, expected_keys: int, false_positive_rate: float = 0.01) -> None:
        with optional_package("rbloom", used_by="BloomFilter"):
            from rbloom import Bloom  # noqa: PLC0415 - see the module's docstring

        require(count_rule("expected_keys", expected_keys), _rate_rule("false_positive_rate", false_positive_rate))
        self._lock = ForkSafeLock()
        self._capacity = expected_keys
        self._added = 0
        self._filter = Bloom(expected_keys, false_positive_rate)

    def may_contain(self, value: str) -> bool:
        """See `KeyFilter`."""
        with self._lock:
            return value in self._filter

    def add(self, value: str) -> None:
        """See `KeyFilter`."""
        with self._lock:
            if value in self._filter:
                return
            if self._added == self._capacity:
                self._filter.clear()
                self._added = 0
            self._filter.add(value)
            self._added += 1


class FilteredStore:
    """A store that reads a key's state before it claims the key, if a filter says that the key is completed.

    Every response is one that the store could have given without the filter.
    """

    def __init__(self, store: Store, key_filter: KeyFilter) -> None:
        is_filter = all(callable(getattr(key_filter, name, None)) for name in ("may_contain", "add"))
        require(sync_store_rule(store), (is_filter, f"key_filter must be a KeyFilter, not {key_filter!r:.80}"))
        self.fail_mode: FailMode | None = getattr(store, "fail_mode", None)
        self._store = store
        self._filter = key_filter

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        if self._filter.may_contain(key.value):
            state = self._store.get_result(key)
            if state is not None and state.status is KeyStatus.COMPLETED and key.is_covered_by(state.mark):
                return Duplicate(key, state.result, state.content_hash if state.mark == key.mark else "")
        check = self._store.check(key, ttl, token)
        if isinstance(check, Duplicate):
            self._filter.add(key.value)
        return check

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._store.store_result(claim, result, ttl, order_ttl)
        self._filter.add(claim.key.value)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.store_failure(claim, error, ttl)

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.extend(claim, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return self._store.get_result(key)

    def cleanup(self) -> int:
        """See `Store`."""
        return self._store.cleanup()


def _rate_rule(name: str, value: object) -> tuple[bool, str]:
    return isinstance(value, float) and 0 < value < 1, f"{name} must be between 0 and 1, not {value!r:.80}"
