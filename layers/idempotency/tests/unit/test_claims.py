"""C20: a lost response blocks no key for long, claims can be extended, and each has a fencing number."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    BreakerStore,
    CircuitBreaker,
    Claim,
    Duplicate,
    FailMode,
    HeldClaim,
    IdempotentConsumer,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
    by_version,
    current_async_claim,
    current_claim,
    entity_key,
    idempotent,
)
from grantwire_idempotency.errors import InternalError, LeaseLostError, RejectedError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore, FakeTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency import CheckResult

MINUTE = timedelta(minutes=1)
NO_METRICS = NoMetrics()
DOWN = RetryableError("down")


class LostResponses(MemoryStore):
    """A store that executes a check and loses its response."""

    lost = 0

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Lose the response."""
        check = super().check(key, ttl, token)
        if self.lost:
            self.lost -= 1
            raise DOWN
        return check


def test_lost_response_of_a_check_is_repeated_under_its_token() -> None:
    """C20: the repeat gets the claim that the first check made."""
    store = LostResponses()
    job = idempotent(store, key=str, fail_mode=FailMode.CLOSED, name="job", metrics=NO_METRICS)(lambda order: order)
    store.lost = 1
    assert job("o_1") == "o_1"


def test_claim_of_a_check_that_was_never_answered_is_released() -> None:
    """C20: not after the lease, but as soon as the same worker gets the message again."""
    store = LostResponses()
    consumer = IdempotentConsumer(store, lambda message: message.id, NO_METRICS, name="consumer")
    store.lost = 2
    with pytest.raises(RetryableError, match="down"):
        consumer.process(Message("m1"))
    assert consumer.process(Message("m1")).value == "m1"


def test_claim_is_released_although_the_circuit_opened_before_the_second_check() -> None:
    """C20: the first check may have claimed the key, so the second one that was not made changes nothing."""
    time = FakeTime()
    store = LostResponses()
    breaker = CircuitBreaker("keys", failures=1, rest=MINUTE, clock=time.clock)
    consumer = IdempotentConsumer(BreakerStore(store, breaker), lambda message: message.id, NO_METRICS, name="consumer")
    store.lost = 1
    with pytest.raises(RetryableError):
        consumer.process(Message("m1"))
    time.advance(MINUTE)
    assert consumer.process(Message("m1")).value == "m1"


def test_failed_unguarded_run_releases_the_claim_of_its_lost_check() -> None:
    """C20: in OPEN too, the check may have claimed the key before its response was lost."""
    store = LostResponses()
    runs: list[str] = []

    @idempotent(store, key=str, fail_mode=FailMode.OPEN, name="job", metrics=NO_METRICS)
    def job(order: str) -> str:
        runs.append(order)
        if len(runs) == 1:
            raise OSError("no")
        return order

    store.lost = 2
    with pytest.raises(OSError, match="no"):
        job("o_1")
    assert job("o_1") == "o_1"
    assert store.check(Key("job:o_1"), MINUTE) == Duplicate(Key("job:o_1"), '"o_1"')


def test_dead_letter_of_an_unguarded_run_is_recognised() -> None:
    """C20: the store learns of it when it is back."""
    store = FailingStore()
    dead_letters: list[str] = []

    def process(_: Message) -> None:
        raise RejectedError("no")

    def save(message: Message, _: Exception) -> None:
        dead_letters.append(message.id)

    consumer = IdempotentConsumer(
        store, process, NO_METRICS, name="consumer", fail_mode=FailMode.OPEN, dead_letter=save
    )
    store.failing = {"check": [DOWN] * 2}
    assert not consumer.process(Message("m1")).replayed
    assert consumer.process(Message("m1")).replayed
    assert dead_letters == ["m1"]


class SlowResponses(AsyncMemoryStore):
    """A store that executes a check and does not respond until it is allowed to."""

    slow = True

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Keep the response."""
        check = await super().check(key, ttl, token)
        if self.slow:
            await asyncio.Event().wait()
        return check


def test_task_that_is_cancelled_during_its_check_releases_the_key() -> None:
    """C20, C22: the check may have claimed the key."""
    store = SlowResponses()

    @idempotent(store, key=str, name="job", metrics=NO_METRICS)
    async def job(order: str) -> str:
        return order

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job("o_1"), 0.01)
        store.slow = False
        assert isinstance(await store.check(Key("job:o_1"), MINUTE), Claim)

    asyncio.run(main())


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_write_the_records_of_unguarded_runs_together() -> None:
    """C17, C20: each record is written once, and no call fails because another one writes."""
    store = FailingStore()
    job = idempotent(store, key=str, fail_mode=FailMode.OPEN, name="job", metrics=NO_METRICS)(lambda order: order)
    for _ in range(5):
        store.failing = {"check": [DOWN] * 400}
        for number in range(200):
            job(f"o_{number}")
        with ThreadPoolExecutor(8) as pool:
            assert len(list(pool.map(job, map(str, range(64))))) == 64
    assert store.inner.check(Key("job:o_199"), MINUTE) == Duplicate(Key("job:o_199"), '"o_199"')


def test_record_of_unguarded_run_is_written_when_store_is_back() -> None:
    """C20: the next call is a duplicate, also if another key is called in between."""
    runs: list[str] = []
    store = FailingStore()
    job = idempotent(store, key=str, fail_mode=FailMode.OPEN, name="job", metrics=NO_METRICS)(runs.append)
    store.failing = {"check": [DOWN] * 4}
    job("o_1")
    job("o_2")
    job("o_3")
    assert runs == ["o_1", "o_2", "o_3"]
    for order in ("o_1", "o_2"):
        assert store.inner.check(Key(f"job:{order}"), MINUTE) == Duplicate(Key(f"job:{order}"), None)
    job("o_1")
    assert runs == ["o_1", "o_2", "o_3"]


def test_claim_is_extended_inside_the_work() -> None:
    """C20: a second run cannot start while the first one extends its claim."""
    time = FakeTime()
    store = MemoryStore(clock=time.clock)
    fences: list[int] = []

    @idempotent(store, key=str, lease=MINUTE, name="job", metrics=NO_METRICS)
    def job(order: str) -> str:
        time.advance(timedelta(seconds=50))
        current_claim().extend(MINUTE)
        time.advance(timedelta(seconds=50))
        fences.append(current_claim().fence)
        assert not isinstance(store.check(Key("job:o_1"), MINUTE), Claim)
        return order

    assert job("o_1") == "o_1"
    assert fences == [1]
    with pytest.raises(InternalError, match="no claim"):
        current_claim()


def test_claim_is_extended_inside_a_coroutine() -> None:
    """C20, C30: with a claim of its own, whose extension a type checker knows to be awaited."""
    time = FakeTime()

    @idempotent(AsyncMemoryStore(clock=time.clock), key=str, lease=MINUTE, name="job", metrics=NO_METRICS)
    async def job(order: str) -> int:
        time.advance(timedelta(seconds=50))
        await current_async_claim().extend(MINUTE)
        time.advance(timedelta(seconds=50))
        assert current_async_claim().key == f"job:{order}"
        with pytest.raises(InternalError, match=r"its claim is current_async_claim\(\)"):
            current_claim()
        return current_async_claim().fence

    assert asyncio.run(job("o_1")) == 1

    @idempotent(MemoryStore(), key=str, name="job", metrics=NO_METRICS)
    def function(_order: str) -> None:
        current_async_claim()

    with pytest.raises(InternalError, match=r"its claim is current_claim\(\)"):
        function("o_1")


@pytest.mark.filterwarnings("ignore:coroutine .*_await_extension.* was never awaited")
def test_forgotten_extension_is_an_error_after_the_result_is_stored() -> None:
    """C30: the claim was not as long as the work thought. The effect has happened, so a repeat gets the result."""
    runs: list[str] = []

    @idempotent(AsyncMemoryStore(), key=str, name="job", metrics=NO_METRICS)
    async def job(order: str) -> str:
        runs.append(order)
        current_async_claim().extend(MINUTE)  # type: ignore[unused-coroutine]
        return f"{order} sold"

    with pytest.raises(InternalError, match=r"write `await current_async_claim\(\).extend\(...\)`"):
        asyncio.run(job("o_1"))
    assert asyncio.run(job("o_1")) == "o_1 sold"
    assert runs == ["o_1"]


def test_missing_fencing_number_is_an_error() -> None:
    """C20: 0 would be below every stored number, so the caller's UPDATE would silently change nothing."""
    claim = HeldClaim(Claim(Key("o_1")), lambda _claim, _ttl: None)
    with pytest.raises(InternalError, match="fences=True"):
        _ = claim.fence


def test_paused_worker_cannot_extend_or_complete() -> None:
    """C20: after its claim has expired and another worker took the key."""
    time = FakeTime()
    store = MemoryStore(clock=time.clock)
    paused = store.check(Key("o_1"), MINUTE)
    assert isinstance(paused, Claim)
    time.advance(2 * MINUTE)
    with pytest.raises(LeaseLostError):
        store.extend(paused, MINUTE)
    taken = store.check(Key("o_1"), MINUTE)
    assert isinstance(taken, Claim)
    assert taken.fence > paused.fence
    with pytest.raises(LeaseLostError):
        store.store_result(paused, "late", MINUTE)


def test_lease_of_consumer_limits_how_long_a_dead_worker_blocks() -> None:
    """C20: `lease` is a parameter of the consumer."""
    time = FakeTime()
    store = MemoryStore(clock=time.clock)
    waits: list[timedelta] = []

    def process(_: Message) -> None:
        check = store.check(Key("consumer:m1"), MINUTE)
        waits.append(getattr(check, "free_in", timedelta(0)))

    IdempotentConsumer(store, process, NO_METRICS, name="consumer", lease=timedelta(seconds=90)).process(Message("m1"))
    assert waits == [timedelta(seconds=90)]


def test_order_by_version_holds_longer_than_results() -> None:
    """C20: an old version is skipped for 30 days, although the result is gone after 24 hours."""
    time = FakeTime()
    seen: list[str] = []
    consumer = IdempotentConsumer(
        MemoryStore(clock=time.clock),
        lambda message: seen.append(message.id),
        NO_METRICS,
        name="consumer",
        identify=by_version(entity_key("order", "id"), "version"),
    )
    consumer.process(Message("m2", body='{"id": "o1", "version": 2}'))
    time.advance(timedelta(days=29))
    assert consumer.process(Message("m1", body='{"id": "o1", "version": 1}')).replayed
    time.advance(timedelta(days=2))
    assert not consumer.process(Message("m1", body='{"id": "o1", "version": 1}')).replayed
    assert seen == ["m2", "m1"]
