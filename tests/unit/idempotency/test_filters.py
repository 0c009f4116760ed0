"""C10: a hint may save a look-up and never decides: whatever it says, every answer is the bare store's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from grantwire_idempotency.errors import ConfigError, GrantwireError
from grantwire_idempotency.stores.filters import BloomFilter, FilteredStore, LruFilter
from grantwire_idempotency.stores.interface import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.stores.memory import MemoryStore
from tests.support.concurrency import at_once
from tests.support.paths import LIBRARY
from tests.unit.test_imports import modules_after_importing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency.stores.filters import KeyFilter
    from grantwire_idempotency.stores.interface import CheckResult, Store

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")


class Watched(MemoryStore):
    """A store that notes what it is asked."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(clock=clock)
        self.asked: list[str] = []

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """Note it."""
        self.asked.append("check")
        return super().check(key, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """Note it."""
        self.asked.append("get_result")
        return super().get_result(key)


@pytest.fixture(params=[lambda: LruFilter(100), lambda: BloomFilter(100)], ids=["lru", "bloom"])
def hint(request: pytest.FixtureRequest) -> KeyFilter:
    """Each kind."""
    made: KeyFilter = request.param()
    return made


def complete(store: Store, key: Key, result: str | None = "done", ttl: timedelta = DAY) -> None:
    """Claim and complete."""
    claim = store.check(key, MINUTE)
    assert isinstance(claim, Claim)
    store.store_result(claim, result, ttl)


def test_a_new_key_is_claimed_at_once_and_a_known_duplicate_is_only_looked_up(hint: KeyFilter) -> None:
    """C10: one question each, where a bare store takes a claim that fails and a look."""
    inner = Watched()
    store = FilteredStore(inner, hint)
    complete(store, KEY)
    assert inner.asked == ["check"]
    inner.asked.clear()
    for _ in range(3):
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert inner.asked == ["get_result"] * 3


def test_what_another_process_completed_is_known_after_the_first_time(hint: KeyFilter) -> None:
    """C10: the store's word, then the hint's memory of it."""
    inner = Watched()
    complete(inner, KEY)
    inner.asked.clear()
    store = FilteredStore(inner, hint)
    assert store.check(KEY, MINUTE) == store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert inner.asked == ["check", "get_result"]


def test_a_hint_that_is_stale_skips_nothing(hint: KeyFilter) -> None:
    """C10: the key has expired in the store, so it is new; and claimed there, atomically."""
    now = 0.0
    inner = Watched(lambda: now)
    store = FilteredStore(inner, hint)
    complete(store, KEY, ttl=MINUTE)
    now = 61.0
    assert hint.may_contain(KEY.value)
    assert isinstance(store.check(KEY, MINUTE), Claim)
    assert isinstance(store.check(KEY, MINUTE), InProgress)


def test_a_newer_version_is_new_whatever_the_hint_says(hint: KeyFilter) -> None:
    """C3, C10: it knows the key, not the mark."""
    store = FilteredStore(Watched(), hint)
    complete(store, replace(KEY, mark=2), "second")
    assert store.check(replace(KEY, mark=1), MINUTE) == Duplicate(replace(KEY, mark=1), "second")
    complete(store, replace(KEY, mark=3), "third")
    assert store.check(replace(KEY, mark=3), MINUTE) == Duplicate(replace(KEY, mark=3), "third")


def test_a_failed_run_is_not_a_completed_one(hint: KeyFilter) -> None:
    """C5: it may be tried again."""
    inner = Watched()
    store = FilteredStore(inner, hint)
    claim = store.check(KEY, MINUTE)
    assert isinstance(claim, Claim)
    store.store_failure(claim, "no", DAY)
    assert not hint.may_contain(KEY.value)
    assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
    complete(store, KEY)
    assert store.cleanup() == 0


def test_a_result_that_the_store_did_not_take_is_no_hint(hint: KeyFilter) -> None:
    """C10: somebody else has the key."""
    now = 0.0
    store = FilteredStore(MemoryStore(clock=lambda: now), hint)
    late = store.check(KEY, MINUTE)
    assert isinstance(late, Claim)
    now = 61.0
    assert isinstance(store.check(KEY, MINUTE), Claim)
    with pytest.raises(GrantwireError):
        store.store_result(late, "late", DAY)
    assert not hint.may_contain(KEY.value)


@dataclass
class Liar:
    """A hint that says what it likes."""

    words: Iterator[bool]

    def may_contain(self, _: str) -> bool:
        """Anything."""
        return next(self.words)

    def add(self, _: str) -> None:
        """And remembers nothing."""


KEYS = some.builds(Key, some.sampled_from(["a", "b"]), some.sampled_from([None, 1, 2, 3]))
TTLS = some.integers(1, 20).map(lambda seconds: timedelta(seconds=seconds))
HINTS = some.one_of(
    some.lists(some.booleans(), min_size=1).map(lambda words: Liar(itertools.cycle(words))),
    some.just(1).map(LruFilter),
    some.just(1).map(BloomFilter),
    some.just(10).map(BloomFilter),
)
# The number says which of the claims so far.
STEPS = some.one_of(
    some.tuples(some.just("check"), some.booleans(), KEYS, TTLS),
    some.tuples(some.just("complete"), some.integers(0, 9), some.sampled_from([None, "", "x", "y"]), TTLS),
    some.tuples(some.just("fail"), some.integers(0, 9), TTLS),
    some.tuples(some.just("look"), KEYS),
    some.tuples(some.just("cleanup")),
    some.tuples(some.just("advance"), some.integers(1, 30)),
)


class Run:
    """One run of steps, on one store; what another process does goes to the bare one."""

    def __init__(self, wrap: Callable[[Store], Store]) -> None:
        self.now = 0.0
        self._bare = MemoryStore(clock=lambda: self.now)
        self._store = wrap(self._bare)
        self._claims: list[Claim] = []

    def take(self, step: tuple[Any, ...]) -> object:
        """What came of it, without the token, which is never the same."""
        name, *arguments = step
        try:
            return getattr(self, f"_{name}")(*arguments)
        except GrantwireError as error:
            return type(error)

    def _check(self, elsewhere: bool, key: Key, ttl: timedelta) -> object:
        found = (self._bare if elsewhere else self._store).check(key, ttl)
        if isinstance(found, Claim):
            self._claims.append(found)
            return found.key
        return found

    def _complete(self, number: int, result: str | None, ttl: timedelta) -> None:
        if self._claims:
            self._store.store_result(self._claims[number % len(self._claims)], result, ttl)

    def _fail(self, number: int, ttl: timedelta) -> None:
        if self._claims:
            self._store.store_failure(self._claims[number % len(self._claims)], "failed", ttl)

    def _look(self, key: Key) -> KeyState | None:
        return self._store.get_result(key)

    def _cleanup(self) -> int:
        return self._store.cleanup()

    def _advance(self, seconds: int) -> None:
        self.now += seconds


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps=some.lists(STEPS, max_size=40), hint=HINTS)
def test_no_hint_changes_any_outcome(steps: list[tuple[Any, ...]], hint: KeyFilter) -> None:
    """C10: false positives, evictions, staleness, other processes: step by step the same as without a hint."""
    bare, hinted = Run(lambda store: store), Run(lambda store: FilteredStore(store, hint))
    for step in steps:
        assert hinted.take(step) == bare.take(step)


def test_the_lru_keeps_what_was_used_last() -> None:
    """C10: to be asked for is to be used."""
    hint = LruFilter(2)
    hint.add("a")
    hint.add("b")
    assert hint.may_contain("a")
    hint.add("c")
    assert [hint.may_contain(value) for value in "abc"] == [True, False, True]


def test_the_bloom_filter_forgets_nothing_until_it_is_full_and_then_starts_anew() -> None:
    """C10: never more than it was made for, so that it never says yes to everything."""
    hint = BloomFilter(1000, 0.01)
    known = [f"key-{number}" for number in range(900)]
    for _ in range(5):
        for value in known:
            hint.add(value)
    assert all(hint.may_contain(value) for value in known)
    for number in range(10_000):
        hint.add(f"more-{number}")
    taken_for_known = sum(hint.may_contain(f"unknown-{number}") for number in range(10_000))
    assert taken_for_known < 500
    assert hint.may_contain("more-9999")


def test_a_bloom_filter_for_one_key_holds_one() -> None:
    """The smallest there is."""
    hint = BloomFilter(1, 1e-9)
    hint.add("a")
    assert hint.may_contain("a")
    hint.add("b")
    assert hint.may_contain("b")
    assert not hint.may_contain("a")


def test_threads_share_a_hint(hint: KeyFilter) -> None:
    """C10: real ones; none is in the other's way, and a hundred keys fit."""

    def work(number: int) -> None:
        for other in range(12):
            hint.add(f"{number}-{other}")
            assert hint.may_contain(f"{number}-{other}")

    at_once(8, work)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: LruFilter(0), "capacity must be an integer of at least 1"),
        (lambda: LruFilter(None), "capacity"),  # type: ignore[arg-type]
        (lambda: BloomFilter(0), "expected_keys must be an integer of at least 1"),
        (lambda: BloomFilter(None), "expected_keys"),  # type: ignore[arg-type]
        (lambda: BloomFilter(10, 1.0), "false_positive_rate must be between 0 and 1"),
        (lambda: BloomFilter(10, None), "false_positive_rate"),  # type: ignore[arg-type]
        (lambda: FilteredStore(None, LruFilter(1)), "store must be a Store"),  # type: ignore[arg-type]
        (lambda: FilteredStore(MemoryStore(), None), "key_filter must be a KeyFilter"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make: Callable[[], object], problem: str) -> None:
    """C5: when it is put together."""
    with pytest.raises(ConfigError, match=problem):
        make()


def test_each_hint_loads_its_own_library() -> None:
    """And the store that they stand in front of loads none."""
    program = "sys; from grantwire_idempotency.stores.filters import FilteredStore, LruFilter, BloomFilter"
    assert not modules_after_importing(program, [LIBRARY]) & {"cachetools", "rbloom", "redis", "psycopg"}
    assert "rbloom" not in modules_after_importing(f"{program}; LruFilter(1)", [LIBRARY])
    assert "cachetools" not in modules_after_importing(f"{program}; BloomFilter(1)", [LIBRARY])
