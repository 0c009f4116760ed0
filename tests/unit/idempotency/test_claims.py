"""C20: a lost response blocks no key for long, claims can be extended, and each has a fencing number."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import (
    Claim,
    Duplicate,
    FailMode,
    IdempotentConsumer,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
    by_version,
    current_claim,
    entity_key,
    idempotent,
)
from grantwire_idempotency.claims import HeldClaim
from grantwire_idempotency.errors import InternalError, LeaseLostError, RetryableError
from tests.unit.idempotency.doubles import FailingStore, FakeTime

if TYPE_CHECKING:
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
