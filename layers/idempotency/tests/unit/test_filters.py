"""C10: a filter can save a round trip and never changes a response of the store."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grantwire_idempotency import (
    BloomFilter,
    Claim,
    Duplicate,
    FilteredStore,
    InProgress,
    Key,
    KeyState,
    KeyStatus,
    LruFilter,
    MemoryStore,
)
from grantwire_idempotency.errors import ConfigError, GrantwireError
from tests.support.concurrency import run_concurrently
from tests.support.paths import LIBRARY
from tests.unit.test_imports import modules_after_importing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import CheckResult, KeyFilter, Store

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")


class RecordingStore(MemoryStore):
    """A store that records its calls."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(clock=clock)
        self.calls: list[str] = []

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Record the call."""
        self.calls.append("check")
        return super().check(key, ttl, token)

    def get_result(self, key: Key) -> KeyState | None:
        """Record the call."""
        self.calls.append("get_result")
        return super().get_result(key)


@pytest.fixture(params=[lambda: LruFilter(100), lambda: BloomFilter(100)], ids=["lru", "bloom"])
def key_filter(request: pytest.FixtureRequest) -> KeyFilter:
    """Return each kind of filter."""
    key_filter: KeyFilter = request.param()
    return key_filter


def complete(store: Store, key: Key, result: str | None = "done", ttl: timedelta = DAY) -> None:
    """Claim and complete a key."""
    claim = store.check(key, MINUTE)
    assert isinstance(claim, Claim)
    store.store_result(claim, result, ttl)


def test_new_key_and_known_duplicate_need_one_call_each(key_filter: KeyFilter) -> None:
    """C10: a new key is only claimed, and a known duplicate is only read."""
    inner = RecordingStore()
    store = FilteredStore(inner, key_filter)
    complete(store, KEY)
    assert inner.calls == ["check"]
    inner.calls.clear()
    for _ in range(3):
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert inner.calls == ["get_result"] * 3


def test_filter_learns_keys_completed_by_other_processes(key_filter: KeyFilter) -> None:
    """C10: the store reports the first duplicate, and the filter knows the key afterwards."""
    inner = RecordingStore()
    complete(inner, KEY)
    inner.calls.clear()
    store = FilteredStore(inner, key_filter)
    assert store.check(KEY, MINUTE) == store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert inner.calls == ["check", "get_result"]


def test_stale_filter_skips_nothing(key_filter: KeyFilter) -> None:
    """C10: a key that has expired in the store is new and is claimed atomically."""
    now = 0.0
    inner = RecordingStore(lambda: now)
    store = FilteredStore(inner, key_filter)
    complete(store, KEY, ttl=MINUTE)
    now = 61.0
    assert key_filter.may_contain(KEY.value)
    assert isinstance(store.check(KEY, MINUTE), Claim)
    assert isinstance(store.check(KEY, MINUTE), InProgress)


def test_newer_version_is_new_despite_filter(key_filter: KeyFilter) -> None:
    """C3, C10: the filter knows the key, not the mark."""
    store = FilteredStore(RecordingStore(), key_filter)
    complete(store, replace(KEY, mark=2), "second")
    assert store.check(replace(KEY, mark=1), MINUTE) == Duplicate(replace(KEY, mark=1), "second")
    complete(store, replace(KEY, mark=3), "third")
    assert store.check(replace(KEY, mark=3), MINUTE) == Duplicate(replace(KEY, mark=3), "third")


def test_failed_key_is_not_added_to_filter(key_filter: KeyFilter) -> None:
    """C5: a failed key can be retried."""
    inner = RecordingStore()
    store = FilteredStore(inner, key_filter)
    claim = store.check(KEY, MINUTE)
    assert isinstance(claim, Claim)
    store.store_failure(claim, "no", DAY)
    assert not key_filter.may_contain(KEY.value)
    assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
    complete(store, KEY)
    assert store.cleanup() == 0


def test_rejected_result_is_not_added_to_filter(key_filter: KeyFilter) -> None:
    """C10: another worker has the key."""
    now = 0.0
    store = FilteredStore(MemoryStore(clock=lambda: now), key_filter)
    late = store.check(KEY, MINUTE)
    assert isinstance(late, Claim)
    now = 61.0
    assert isinstance(store.check(KEY, MINUTE), Claim)
    with pytest.raises(GrantwireError):
        store.store_result(late, "late", DAY)
    assert not key_filter.may_contain(KEY.value)


@dataclass
class LyingFilter:
    """A filter that gives arbitrary responses."""

    responses: Iterator[bool]

    def may_contain(self, _: str) -> bool:
        """Return the next arbitrary response."""
        return next(self.responses)

    def add(self, _: str) -> None:
        """Do nothing."""


KEYS = st.builds(Key, st.sampled_from(["a", "b"]), st.sampled_from([None, 1, 2, 3]))
TTLS = st.integers(1, 20).map(lambda seconds: timedelta(seconds=seconds))
FILTERS = st.one_of(
    st.lists(st.booleans(), min_size=1).map(lambda responses: LyingFilter(itertools.cycle(responses))),
    st.just(1).map(LruFilter),
    st.just(1).map(BloomFilter),
    st.just(10).map(BloomFilter),
)
# The integer selects one of the claims so far.
STEPS = st.one_of(
    st.tuples(st.just("check"), st.booleans(), KEYS, TTLS),
    st.tuples(st.just("complete"), st.integers(0, 9), st.sampled_from([None, "", "x", "y"]), TTLS),
    st.tuples(st.just("fail"), st.integers(0, 9), TTLS),
    st.tuples(st.just("get_state"), KEYS),
    st.tuples(st.just("cleanup")),
    st.tuples(st.just("advance"), st.integers(1, 30)),
)


class Run:
    """A run of steps on one store; the steps of another process use the bare store."""

    def __init__(self, wrap: Callable[[Store], Store]) -> None:
        self.now = 0.0
        self._bare = MemoryStore(clock=lambda: self.now)
        self._store = wrap(self._bare)
        self._claims: list[Claim] = []

    def take(self, step: tuple[Any, ...]) -> object:
        """Execute a step and return its outcome without the random token."""
        name, *arguments = step
        try:
            return getattr(self, f"_{name}")(*arguments)
        except GrantwireError as error:
            return type(error)

    def _check(self, elsewhere: bool, key: Key, ttl: timedelta) -> object:
        check = (self._bare if elsewhere else self._store).check(key, ttl)
        if isinstance(check, Claim):
            self._claims.append(check)
            return check.key
        return check

    def _complete(self, number: int, result: str | None, ttl: timedelta) -> None:
        if self._claims:
            self._store.store_result(self._claims[number % len(self._claims)], result, ttl)

    def _fail(self, number: int, ttl: timedelta) -> None:
        if self._claims:
            self._store.store_failure(self._claims[number % len(self._claims)], "failed", ttl)

    def _get_state(self, key: Key) -> KeyState | None:
        return self._store.get_result(key)

    def _cleanup(self) -> int:
        return self._store.cleanup()

    def _advance(self, seconds: int) -> None:
        self.now += seconds


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=40), key_filter=FILTERS)
def test_filter_never_changes_outcome(steps: list[tuple[Any, ...]], key_filter: KeyFilter) -> None:
    """C10: despite false positives, evictions and stale keys, every step has the outcome of a bare store."""
    bare, filtered = Run(lambda store: store), Run(lambda store: FilteredStore(store, key_filter))
    for step in steps:
        assert filtered.take(step) == bare.take(step)


def test_lru_filter_keeps_most_recently_used_keys() -> None:
    """C10: a look-up counts as use."""
    key_filter = LruFilter(2)
    key_filter.add("a")
    key_filter.add("b")
    assert key_filter.may_contain("a")
    key_filter.add("c")
    assert [key_filter.may_contain(value) for value in "abc"] == [True, False, True]


def test_bloom_filter_is_cleared_when_full() -> None:
    """C10: it forgets nothing before, and its rate of false positives stays low."""
    key_filter = BloomFilter(1000, 0.01)
    known = [f"key-{number}" for number in range(900)]
    for _ in range(5):
        for value in known:
            key_filter.add(value)
    assert all(key_filter.may_contain(value) for value in known)
    for number in range(10_000):
        key_filter.add(f"more-{number}")
    false_positives = sum(key_filter.may_contain(f"unknown-{number}") for number in range(10_000))
    assert false_positives < 500
    assert key_filter.may_contain("more-9999")


def test_bloom_filter_with_capacity_one_holds_one_key() -> None:
    """The smallest filter works."""
    key_filter = BloomFilter(1, 1e-9)
    key_filter.add("a")
    assert key_filter.may_contain("a")
    key_filter.add("b")
    assert key_filter.may_contain("b")
    assert not key_filter.may_contain("a")


def test_filter_is_thread_safe(key_filter: KeyFilter) -> None:
    """C10: concurrent threads do not lose keys."""

    def work(number: int) -> None:
        for other in range(12):
            key_filter.add(f"{number}-{other}")
            assert key_filter.may_contain(f"{number}-{other}")

    run_concurrently(8, work)


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
def test_invalid_argument_raises_config_error(make: Callable[[], object], problem: str) -> None:
    """C5: creating a filter or a store validates the arguments."""
    with pytest.raises(ConfigError, match=problem):
        make()


def test_each_filter_imports_only_its_own_library() -> None:
    """Importing FilteredStore imports neither library."""
    program = "sys; from grantwire_idempotency._internal.stores.filters import FilteredStore, LruFilter, BloomFilter"
    assert not modules_after_importing(program, [LIBRARY]) & {"cachetools", "rbloom", "redis", "psycopg"}
    assert "rbloom" not in modules_after_importing(f"{program}; LruFilter(1)", [LIBRARY])
    assert "cachetools" not in modules_after_importing(f"{program}; BloomFilter(1)", [LIBRARY])
