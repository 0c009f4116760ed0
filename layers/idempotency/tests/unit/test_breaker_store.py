"""C10: a circuit breaker around a store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import (
    BreakerStore,
    CircuitBreaker,
    Claim,
    Duplicate,
    FailMode,
    InProgress,
    Key,
    KeyState,
    KeyStatus,
    MemoryStore,
    idempotent,
)
from grantwire_idempotency.errors import BusyError, CircuitOpenError, ConfigError, LeaseLostError, RetryableError
from layers.idempotency.tests.unit.doubles import FakeTime
from tests.support.concurrency import run_concurrently

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency import CheckResult

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")


class UnavailableStore(MemoryStore):
    """A store that can be made unavailable and counts its calls."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__(clock=time.clock)
        self.down = False
        self.calls = 0

    def _count_call(self) -> None:
        self.calls += 1
        if self.down:
            raise RetryableError("temporarily unavailable")

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Fail while the store is unavailable."""
        self._count_call()
        return super().check(key, ttl, token)

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Fail while the store is unavailable."""
        self._count_call()
        super().store_result(claim, result, ttl, order_ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """Fail while the store is unavailable."""
        self._count_call()
        super().store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """Fail while the store is unavailable."""
        self._count_call()
        return super().get_result(key)

    def cleanup(self) -> int:
        """Fail while the store is unavailable."""
        self._count_call()
        return super().cleanup()


@pytest.fixture
def time() -> FakeTime:
    """Return a clock that does not advance on its own."""
    return FakeTime()


@pytest.fixture
def inner(time: FakeTime) -> UnavailableStore:
    """Return the store behind the circuit breaker."""
    return UnavailableStore(time)


@pytest.fixture
def store(inner: UnavailableStore, time: FakeTime) -> BreakerStore:
    """Return a store whose circuit opens for five seconds after three failures."""
    return BreakerStore(inner, CircuitBreaker("store", failures=3, rest=timedelta(seconds=5), clock=time.clock))


def claim_key(store: BreakerStore, key: Key = KEY) -> Claim:
    """Claim the key and return the claim."""
    check = store.check(key, MINUTE)
    assert isinstance(check, Claim)
    return check


def open_circuit(store: BreakerStore, inner: UnavailableStore) -> None:
    """Make the store unavailable and open the circuit with three failed checks."""
    inner.down = True
    for _ in range(3):
        with pytest.raises(RetryableError, match="temporarily unavailable"):
            store.check(KEY, MINUTE)
    inner.calls = 0


def test_available_store_is_passed_through(store: BreakerStore) -> None:
    """C4, C10: every response of an available store is returned unchanged."""
    claim = claim_key(store)
    assert store.check(KEY, MINUTE) == InProgress(KEY, MINUTE)
    store.store_failure(claim, "no", DAY)
    assert store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
    store.store_result(claim_key(store), "done", DAY)
    assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
    assert store.cleanup() == 0


def test_failing_store_is_not_called_until_trial_succeeds(
    store: BreakerStore, inner: UnavailableStore, time: FakeTime
) -> None:
    """C10: while the circuit is open, an error replaces the timeout; a successful trial closes the circuit."""
    claim = claim_key(store, Key("another"))
    open_circuit(store, inner)
    blocked_calls: list[Callable[[], object]] = [
        lambda: store.check(KEY, MINUTE),
        lambda: store.store_failure(claim, "no", DAY),
        lambda: store.get_result(KEY),
        store.cleanup,
    ]
    for call in blocked_calls:
        with pytest.raises(CircuitOpenError):
            call()
    assert inner.calls == 0
    inner.down = False
    time.now += 5
    assert isinstance(store.check(KEY, MINUTE), Claim)
    assert isinstance(store.check(Key("other"), MINUTE), Claim)


@pytest.mark.parametrize("name", ["check", "store_result", "store_failure", "get_result", "cleanup"])
def test_failure_of_any_method_opens_circuit(store: BreakerStore, inner: UnavailableStore, name: str) -> None:
    """C10: failures of every method count."""
    claim = claim_key(store)
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


def test_lost_lease_does_not_count_as_failure(store: BreakerStore, inner: UnavailableStore, time: FakeTime) -> None:
    """C10: LeaseLostError and InProgress are responses of an available store."""
    late = claim_key(store)
    time.now += 61
    claim_key(store)
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


def test_store_result_ignores_open_circuit(store: BreakerStore, inner: UnavailableStore) -> None:
    """C10: the work is done, so the result is stored even while the circuit is open; success closes the circuit."""
    claim = claim_key(store)
    open_circuit(store, inner)
    with pytest.raises(RetryableError) as caught:
        store.store_result(claim, "done", DAY)
    assert not isinstance(caught.value, CircuitOpenError)
    inner.down = False
    store.store_result(claim, "done", DAY)
    assert inner.calls == 2
    assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


def test_one_of_many_threads_makes_the_trial(store: BreakerStore, inner: UnavailableStore, time: FakeTime) -> None:
    """C10: one real thread makes the trial; the others get CircuitOpenError immediately."""
    open_circuit(store, inner)
    time.now += 5

    def failing_check(_: int) -> type[Exception]:
        with pytest.raises(RetryableError) as caught:
            store.check(KEY, MINUTE)
        return caught.type

    errors = run_concurrently(8, failing_check)
    assert inner.calls == errors.count(RetryableError) == 1
    assert errors.count(CircuitOpenError) == 7


def test_open_circuit_triggers_fail_mode(store: BreakerStore, inner: UnavailableStore) -> None:
    """C6: OPEN runs the work, CLOSED does not; neither waits for the store."""
    runs: list[str] = []
    job = idempotent(store, key=str, fail_mode=FailMode.OPEN, name="job")(runs.append)
    careful = idempotent(store, key=str, fail_mode=FailMode.CLOSED, name="careful")(runs.append)
    open_circuit(store, inner)
    job("1")
    with pytest.raises(CircuitOpenError):
        careful("1")
    assert runs == ["1"]
    assert inner.calls == 0


def test_invalid_store_or_breaker_raises_config_error(inner: UnavailableStore) -> None:
    """C5: creating the store reports every invalid argument by name."""
    with pytest.raises(ConfigError) as caught:
        BreakerStore(None, None)  # type: ignore[arg-type]
    assert ["store must be" in problem for problem in caught.value.problems] == [True, False]
    with pytest.raises(ConfigError, match="breaker must be a CircuitBreaker"):
        BreakerStore(inner, 3)  # type: ignore[arg-type]


def test_shortage_of_connections_does_not_open_the_circuit() -> None:
    """C23, C10: the server was not asked, so nothing is known about it."""
    breaker = CircuitBreaker("store", failures=2, rest=MINUTE)
    for _ in range(5):
        with pytest.raises(BusyError), breaker.guard():
            raise BusyError("busy")
    assert breaker.closed
    for error in (RetryableError("down"), BusyError("busy"), RetryableError("down")):
        with pytest.raises(RetryableError), breaker.guard():
            raise error
    assert not breaker.closed
