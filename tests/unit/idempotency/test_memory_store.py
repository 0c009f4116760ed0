"""C4: what is particular to the store in memory; the rest is in the conformance suite of all stores."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from grantwire_idempotency import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus, MemoryStore
from grantwire_idempotency.errors import ConfigError
from tests.support.concurrency import at_once

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    """At zero."""
    return Clock()


@pytest.fixture
def small(clock: Clock) -> MemoryStore:
    """A store that remembers two records."""
    return MemoryStore(2, clock=clock)


def claim(store: MemoryStore, value: str, ttl: timedelta = HOUR) -> Claim:
    """A claim, which must be granted."""
    check = store.check(Key(value), ttl)
    assert isinstance(check, Claim)
    return check


def complete(store: MemoryStore, value: str) -> None:
    """Claim and complete."""
    store.store_result(claim(store, value), value, HOUR)


def test_the_record_that_was_not_used_for_longest_is_forgotten_first(small: MemoryStore) -> None:
    """001: an LRU; a duplicate that comes in keeps its record."""
    complete(small, "a")
    complete(small, "b")
    assert small.check(Key("a"), HOUR) == Duplicate(Key("a"), "a")
    complete(small, "c")
    assert small.get_result(Key("a")) == KeyState(KeyStatus.COMPLETED, "a")
    assert small.get_result(Key("b")) is None


def test_a_record_that_has_expired_makes_room_first(small: MemoryStore, clock: Clock) -> None:
    """However lately it was used."""
    complete(small, "a")
    small.store_result(claim(small, "short"), "short", MINUTE)
    clock.seconds += 120
    complete(small, "b")
    assert small.check(Key("a"), HOUR) == Duplicate(Key("a"), "a")
    assert small.check(Key("b"), HOUR) == Duplicate(Key("b"), "b")


def test_a_claim_is_never_forgotten_before_its_time(small: MemoryStore) -> None:
    """A store that is full of work gives nobody's work to another."""
    values = [f"key {number}" for number in range(20)]
    for value in values:
        claim(small, value)
    for value in values:
        assert isinstance(small.check(Key(value), HOUR), InProgress)


def test_failures_do_not_push_out_records(small: MemoryStore) -> None:
    """A failure is only there to be looked up."""
    complete(small, "a")
    complete(small, "b")
    for number in range(20):
        small.store_failure(claim(small, f"failed {number}"), "no", HOUR)
    assert small.check(Key("a"), HOUR) == Duplicate(Key("a"), "a")
    assert small.check(Key("b"), HOUR) == Duplicate(Key("b"), "b")


def test_the_claims_of_the_dead_do_not_pile_up(small: MemoryStore, clock: Clock) -> None:
    """Nobody calls cleanup, and nobody asks for these keys again."""
    for number in range(100):
        claim(small, f"key {number}", MINUTE)
        clock.seconds += 61
    assert small.cleanup() <= 2


def test_cleanup_says_how_much_it_deleted(clock: Clock) -> None:
    """Claims, records and failures that have expired."""
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


def test_a_life_ends_on_its_last_moment(small: MemoryStore, clock: Clock) -> None:
    """Exactly then the key is free."""
    small.store_result(claim(small, "a"), None, MINUTE)
    clock.seconds = 59.999
    assert isinstance(small.check(Key("a"), MINUTE), Duplicate)
    clock.seconds = 60.0
    held = claim(small, "a", MINUTE)
    clock.seconds = 119.999
    assert isinstance(small.check(Key("a"), MINUTE), InProgress)
    clock.seconds = 120.0
    assert claim(small, "a") != held


def test_a_decision_is_not_interrupted() -> None:
    """C4: threads that change places at the worst moment, between a look and the claim."""

    def slow() -> float:
        time.sleep(0.001)
        return 0.0

    store = MemoryStore(clock=slow)
    checks = at_once(8, lambda _: store.check(Key("a"), HOUR))
    assert sum(isinstance(check, Claim) for check in checks) == 1


def test_time_goes_by_itself() -> None:
    """Without a clock it is the process's."""
    store = MemoryStore()
    claim(store, "a", timedelta(0))
    while isinstance(store.check(Key("a"), HOUR), InProgress):
        pass
    assert isinstance(store.check(Key("a"), HOUR), InProgress)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_store_without_room_is_refused(capacity: int) -> None:
    """It could never find a duplicate."""
    with pytest.raises(ConfigError, match="at least 1"):
        MemoryStore(capacity)
