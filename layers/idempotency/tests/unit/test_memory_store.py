"""C4: behaviour specific to the memory store; the conformance suite covers the rest."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus, MemoryStore
from grantwire_idempotency.errors import ConfigError
from tests.support.concurrency import run_concurrently

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Clock:
    """A clock in seconds that the test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    """Return a clock at zero."""
    return Clock()


@pytest.fixture
def small(clock: Clock) -> MemoryStore:
    """Return a store with capacity for two completions."""
    return MemoryStore(2, clock=clock)


def claim(store: MemoryStore, value: str, ttl: timedelta = HOUR) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(Key(value), ttl)
    assert isinstance(check, Claim)
    return check


def complete(store: MemoryStore, value: str) -> None:
    """Claim and complete a key."""
    store.store_result(claim(store, value), value, HOUR)


def test_least_recently_used_completion_is_evicted_first(small: MemoryStore) -> None:
    """001: a duplicate counts as use."""
    complete(small, "a")
    complete(small, "b")
    assert small.check(Key("a"), HOUR) == Duplicate(Key("a"), "a")
    complete(small, "c")
    assert small.get_result(Key("a")) == KeyState(KeyStatus.COMPLETED, "a")
    assert small.get_result(Key("b")) is None


def test_claim_is_never_evicted_before_expiry(small: MemoryStore) -> None:
    """A full store does not let a second worker claim a key."""
    values = [f"key {number}" for number in range(20)]
    for value in values:
        claim(small, value)
    for value in values:
        assert isinstance(small.check(Key(value), HOUR), InProgress)


def test_failures_do_not_evict_completions(small: MemoryStore) -> None:
    """Failures are only information."""
    complete(small, "a")
    complete(small, "b")
    for number in range(20):
        small.store_failure(claim(small, f"failed {number}"), "no", HOUR)
    assert small.check(Key("a"), HOUR) == Duplicate(Key("a"), "a")
    assert small.check(Key("b"), HOUR) == Duplicate(Key("b"), "b")


def test_expired_claims_do_not_accumulate(small: MemoryStore, clock: Clock) -> None:
    """Even without a call of cleanup or another check of their keys."""
    for number in range(100):
        claim(small, f"key {number}", MINUTE)
        clock.seconds += 61
    assert small.cleanup() <= 2


def test_cleanup_returns_number_of_deleted_entries(clock: Clock) -> None:
    """It counts expired claims, completions and failures."""
    store = MemoryStore(clock=clock)
    complete(store, "a")
    store.store_failure(claim(store, "b"), "no", HOUR)
    claim(store, "c", MINUTE)
    claim(store, "d", 9 * HOUR)
    assert store.cleanup() == 0
    clock.seconds += 60
    assert store.cleanup() == 1
    clock.seconds += 3600
    assert store.cleanup() == 2
    assert store.cleanup() == 0


def test_entry_expires_exactly_at_its_ttl(small: MemoryStore, clock: Clock) -> None:
    """The key is free at exactly that moment."""
    small.store_result(claim(small, "a"), None, MINUTE)
    clock.seconds = 59.999
    assert isinstance(small.check(Key("a"), MINUTE), Duplicate)
    clock.seconds = 60.0
    held = claim(small, "a", MINUTE)
    clock.seconds = 119.999
    assert isinstance(small.check(Key("a"), MINUTE), InProgress)
    clock.seconds = 120.0
    assert claim(small, "a") != held


def test_check_is_atomic_between_threads() -> None:
    """C4: threads switch at the worst moment, between the read and the claim."""

    def slow() -> float:
        time.sleep(0.001)
        return 0.0

    store = MemoryStore(clock=slow)
    checks = run_concurrently(8, lambda _: store.check(Key("a"), HOUR))
    assert sum(isinstance(check, Claim) for check in checks) == 1


def test_default_clock_is_monotonic_time() -> None:
    """Without a clock argument, entries expire in real time."""
    store = MemoryStore()
    claim(store, "a", timedelta(0))
    while isinstance(store.check(Key("a"), HOUR), InProgress):
        pass
    assert isinstance(store.check(Key("a"), HOUR), InProgress)


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "10", None])
def test_capacity_that_is_no_positive_integer_is_rejected(capacity: Any) -> None:
    """Such a store could never find a duplicate."""
    with pytest.raises(ConfigError, match="at least 1"):
        MemoryStore(capacity)
