"""Hints in front of a store: a guess at what is completed, which may save a round trip and never decides (C10).

To a store like Redis a duplicate is a claim that fails and then a look at why. Where the hint says that the key was
completed, looking comes first and is enough. A new key costs nothing more. The hint is only this process's memory: it
forgets, it does not know what others completed, and a Bloom filter takes some keys for others. None of that changes an
answer: a Duplicate is always the store's word, and so is New.

Each kind of hint loads its own library when it is made, so that nobody needs both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency.optional import needs
from grantwire_idempotency.stores.interface import Duplicate, Status
from grantwire_idempotency.wiring import require, store_rule

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency.stores.interface import Check, Key, New, Record, Store


class Hint(Protocol):
    """Remembers keys, more or less; for any number of threads."""

    def may_have(self, value: str) -> bool:
        """Whether the key was added, as far as it remembers."""

    def add(self, value: str) -> None:
        """The key is completed."""


class LruHint:
    """Remembers the keys that were completed or asked for last, exactly, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        with needs("cachetools", for_what="LruHint"):
            from cachetools import LRUCache  # noqa: PLC0415 - see the module's docstring

        require(_count_rule("capacity", capacity))
        self._lock = threading.Lock()
        self._keys: LRUCache[str, None] = LRUCache(capacity)

    def may_have(self, value: str) -> bool:
        """See `Hint`."""
        with self._lock:
            found = value in self._keys
            if found:
                self._keys[value] = None
            return found

    def add(self, value: str) -> None:
        """See `Hint`."""
        with self._lock:
            self._keys[value] = None


class BloomHint:
    """Remembers many keys in a few bits each, and takes others for one of them at no more than the given rate.

    When it has `expected_keys` it starts anew: beyond that it would say yes to nearly everything.
    """

    def __init__(self, expected_keys: int, false_positive_rate: float = 0.01) -> None:
        with needs("rbloom", for_what="BloomHint"):
            from rbloom import Bloom  # noqa: PLC0415 - see the module's docstring

        require(_count_rule("expected_keys", expected_keys), _rate_rule("false_positive_rate", false_positive_rate))
        self._lock = threading.Lock()
        self._room = expected_keys
        self._added = 0
        self._filter = Bloom(expected_keys, false_positive_rate)

    def may_have(self, value: str) -> bool:
        """See `Hint`."""
        with self._lock:
            return value in self._filter

    def add(self, value: str) -> None:
        """See `Hint`."""
        with self._lock:
            if value in self._filter:
                return
            if self._added == self._room:
                self._filter.clear()
                self._added = 0
            self._filter.add(value)
            self._added += 1


class HintedStore:
    """A store that looks before it claims where a hint says that the key was completed.

    Every answer is one that the store itself could have given.
    """

    def __init__(self, store: Store, hint: Hint) -> None:
        complete = all(callable(getattr(hint, name, None)) for name in ("may_have", "add"))
        require(store_rule(store), (complete, f"hint must be a Hint, not {hint!r:.80}"))
        self._store = store
        self._hint = hint

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        if self._hint.may_have(key.value):
            record = self._store.get_result(key)
            if record is not None and record.status is Status.COMPLETED and key.covered_by(record.mark):
                return Duplicate(key, record.result)
        found = self._store.check(key, ttl)
        if isinstance(found, Duplicate):
            self._hint.add(key.value)
        return found

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.store_result(claim, result, ttl)
        self._hint.add(claim.key.value)

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._store.store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        return self._store.get_result(key)

    def cleanup(self) -> int:
        """See `Store`."""
        return self._store.cleanup()


def _count_rule(name: str, value: object) -> tuple[bool, str]:
    return isinstance(value, int) and value > 0, f"{name} must be a whole number from 1, not {value!r:.80}"


def _rate_rule(name: str, value: object) -> tuple[bool, str]:
    return isinstance(value, float) and 0 < value < 1, f"{name} must be between 0 and 1, not {value!r:.80}"
