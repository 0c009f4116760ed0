"""C10: a circuit breaker around a store: what counts, what is refused, what is tried all the same."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import FailMode, idempotent
from grantwire_idempotency.circuit_breaker import CircuitBreaker
from grantwire_idempotency.errors import CircuitOpenError, ConfigError, LeaseLostError, RetryableError
from grantwire_idempotency.stores.breaker import BreakerStore
from grantwire_idempotency.stores.interface import Claim, Duplicate, InProgress, Key, KeyState, KeyStatus
from grantwire_idempotency.stores.memory import MemoryStore
from tests.support.concurrency import at_once
from tests.unit.idempotency.doubles import Time

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency.stores.interface import CheckResult

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")


class Unsteady(MemoryStore):
    """A store that can be down, and counts how often it was asked."""

    def __init__(self, time: Time) -> None:
        super().__init__(clock=time.clock)
        self.down = False
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.down:
            raise RetryableError("temporarily unavailable")

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """Unless it is down."""
        self._ask()
        return super().check(key, ttl)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """Unless it is down."""
        self._ask()
        super().store_result(claim, result, ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """Unless it is down."""
        self._ask()
        super().store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """Unless it is down."""
        self._ask()
        return super().get_result(key)

    def cleanup(self) -> int:
        """Unless it is down."""
        self._ask()
        return super().cleanup()


@pytest.fixture
def time() -> Time:
    """A clock that stands still."""
    return Time()


@pytest.fixture
def inner(time: Time) -> Unsteady:
    """The store behind."""
    return Unsteady(time)


@pytest.fixture
def store(inner: Unsteady, time: Time) -> BreakerStore:
    """Opens after three failures, for five seconds."""
    return BreakerStore(inner, CircuitBreaker("store", failures=3, rest=timedelta(seconds=5), clock=time.clock))


def claimed(store: BreakerStore, key: Key = KEY) -> Claim:
    """A claim, which must be granted."""
    found = store.check(key, MINUTE)
    assert isinstance(found, Claim)
    return found


def open_circuit(store: BreakerStore, inner: Unsteady) -> None:
    """The store is down, and was asked three times."""
    inner.down = True
    for _ in range(3):
        with pytest.raises(RetryableError, match="temporarily unavailable"):
            store.check(KEY, MINUTE)
    inner.asked = 0


def test_a_store_that_is_well_is_itself(store: BreakerStore) -> None:
    """C4, C10: every answer is passed on."""
    claim = claimed(store)
    assert store.check(KEY, MINUTE) == InProgress(KEY, MINUTE)
    store.store_failure(claim, "no", DAY)
    assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
    store.store_result(claimed(store), "done", DAY)
    assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert store.cleanup() == 0


def test_a_store_that_keeps_failing_is_not_asked(store: BreakerStore, inner: Unsteady, time: Time) -> None:
    """C10: an answer at once in place of a timeout, until one that is let through finds it well."""
    claim = claimed(store, Key("another"))
    open_circuit(store, inner)
    refused: list[Callable[[], object]] = [
        lambda: store.check(KEY, MINUTE),
        lambda: store.store_failure(claim, "no", DAY),
        lambda: store.get_result(KEY),
        store.cleanup,
    ]
    for call in refused:
        with pytest.raises(CircuitOpenError):
            call()
    assert inner.asked == 0
    inner.down = False
    time.now += 5
    assert isinstance(store.check(KEY, MINUTE), Claim)
    assert isinstance(store.check(Key("other"), MINUTE), Claim)


@pytest.mark.parametrize("name", ["check", "store_result", "store_failure", "get_result", "cleanup"])
def test_every_method_counts(store: BreakerStore, inner: Unsteady, name: str) -> None:
    """C10: whichever finds that it is down."""
    claim = claimed(store)
    calls: dict[str, Callable[[], object]] = {
        "check": lambda: store.check(KEY, MINUTE),
        "store_result": lambda: store.store_result(claim, None, DAY),
        "store_failure": lambda: store.store_failure(claim, "no", DAY),
        "get_result": lambda: store.get_result(KEY),
        "cleanup": store.cleanup,
    }
    inner.down = True
    for _ in range(3):
        with pytest.raises(RetryableError):
            calls[name]()
    with pytest.raises(CircuitOpenError):
        store.get_result(KEY)


def test_a_lost_lease_is_not_the_store_s_fault(store: BreakerStore, inner: Unsteady, time: Time) -> None:
    """C10: nor is a key in progress; it answered."""
    late = claimed(store)
    time.now += 61
    claimed(store)
    for _ in range(10):
        with pytest.raises(LeaseLostError):
            store.store_result(late, "late", DAY)
        assert isinstance(store.check(KEY, MINUTE), InProgress)
    inner.down = True
    for _ in range(2):
        with pytest.raises(RetryableError):
            store.check(KEY, MINUTE)
    inner.down = False
    with pytest.raises(LeaseLostError):
        store.store_result(late, "late", DAY)
    open_circuit(store, inner)


def test_a_result_is_written_all_the_same(store: BreakerStore, inner: Unsteady) -> None:
    """C10: the work is done; if the store is back, nobody does it twice, and the circuit closes."""
    claim = claimed(store)
    open_circuit(store, inner)
    with pytest.raises(RetryableError) as caught:
        store.store_result(claim, "done", DAY)
    assert not isinstance(caught.value, CircuitOpenError)
    inner.down = False
    store.store_result(claim, "done", DAY)
    assert inner.asked == 2
    assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_of_many_threads_one_asks_whether_it_is_back(store: BreakerStore, inner: Unsteady, time: Time) -> None:
    """C10: real threads; the others are told at once."""
    open_circuit(store, inner)
    time.now += 5

    def ask(_: int) -> type[Exception]:
        with pytest.raises(RetryableError) as caught:
            store.check(KEY, MINUTE)
        return caught.type

    found = at_once(8, ask)
    assert inner.asked == found.count(RetryableError) == 1
    assert found.count(CircuitOpenError) == 7


def test_an_open_circuit_is_a_store_that_is_down(store: BreakerStore, inner: Unsteady) -> None:
    """C6: OPEN runs the work, CLOSED does not; neither waits for the store."""
    runs: list[str] = []
    job = idempotent(store, key=str, fail_mode=FailMode.OPEN, name="job")(runs.append)
    careful = idempotent(store, key=str, fail_mode=FailMode.CLOSED, name="careful")(runs.append)
    open_circuit(store, inner)
    job("1")
    with pytest.raises(CircuitOpenError):
        careful("1")
    assert runs == ["1"]
    assert inner.asked == 0


def test_what_is_no_store_or_no_breaker_is_refused_at_once(inner: Unsteady) -> None:
    """C5: when it is put together; every problem by name."""
    with pytest.raises(ConfigError) as caught:
        BreakerStore(None, None)  # type: ignore[arg-type]
    assert ["store must be" in problem for problem in caught.value.problems] == [True, False]
    with pytest.raises(ConfigError, match="breaker must be a CircuitBreaker"):
        BreakerStore(inner, 3)  # type: ignore[arg-type]
