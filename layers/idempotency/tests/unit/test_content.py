"""C5: `content=` of a job: the same key with other arguments is an error, and not a repeat."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from grantwire_idempotency import (
    AsyncMemoryStore,
    Claim,
    FailMode,
    IdempotencyChecker,
    IdempotentConsumer,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
    business_key,
    idempotent,
)
from grantwire_idempotency.errors import BadRequestError, ConfigError, KeyConflictError, RetryableError
from layers.idempotency.tests.unit.doubles import FailingStore

if TYPE_CHECKING:
    from grantwire_idempotency import Store

NO_METRICS = NoMetrics()
MINUTE = timedelta(minutes=1)
CONFLICT = "used with other arguments; use a new key"


def pay_once(store: Store, **options: Any) -> Any:
    """Return a job with the order as its key and the amount as its content; it returns how often it ran."""
    runs: list[int] = []

    @idempotent(
        store,
        key=lambda order, _amount: order,
        content=lambda _order, amount: {"amount": amount},
        name="pay",
        metrics=NO_METRICS,
        **options,
    )
    def pay(_order: str, amount: Any) -> int:
        if amount == 0:
            raise ValueError("no")
        runs.append(amount)
        return len(runs)

    return pay


def test_same_key_with_other_arguments_is_a_conflict() -> None:
    """C5: a repeat gets the stored result; another amount is another payment, whose key is wrong."""
    pay = pay_once(MemoryStore())
    assert (pay("o-1", 5), pay("o-1", 5), pay("o-2", 6)) == (1, 1, 2)
    with pytest.raises(KeyConflictError, match=CONFLICT):
        pay("o-1", 6)
    assert pay("o-1", 5) == 1


def test_failed_run_leaves_no_content() -> None:
    """C5: nothing happened, so the next call with the key may have other arguments."""
    pay = pay_once(MemoryStore())
    with pytest.raises(ValueError, match="no"):
        pay("o-1", 0)
    assert pay("o-1", 5) == 1


def test_conflict_is_found_while_the_first_call_runs() -> None:
    """C5: a later repeat could not succeed either, so the error is not one to retry."""
    store = MemoryStore()
    assert isinstance(store.check(Key("pay:o-1", content_hash="other"), MINUTE), Claim)
    with pytest.raises(KeyConflictError, match=CONFLICT):
        pay_once(store)("o-1", 5)


def test_content_of_an_unguarded_run_is_recorded_too() -> None:
    """C5, C6: its late record has the content of its call."""
    store = FailingStore()
    store.failing["check"] = [RetryableError("no"), RetryableError("no")]
    pay = pay_once(store, fail_mode=FailMode.OPEN)
    assert (pay("o-1", 5), pay("o-1", 5)) == (1, 1)
    with pytest.raises(KeyConflictError, match=CONFLICT):
        pay("o-1", 6)


def test_key_without_content_is_never_a_conflict() -> None:
    """C5: a job that begins to compare its content accepts the keys that it has stored before."""
    store = MemoryStore()
    store.store_result(cast("Claim", store.check(Key("pay:o-1"), MINUTE)), "9", MINUTE)
    assert pay_once(store)("o-1", 5) == 9


def test_content_can_be_a_key_strategy_and_must_be_json() -> None:
    """C5: other fields of the event, such as the id of its delivery, do not matter."""

    @idempotent(
        MemoryStore(),
        key=lambda event: event["order"],
        content=business_key("order", "order", "total"),
        name="job",
        metrics=NO_METRICS,
    )
    def job(event: dict[str, Any]) -> Any:
        return event["delivery"]

    event = {"order": "o-1", "total": 5, "delivery": 1}
    assert (job(event), job({**event, "delivery": 2})) == (1, 1)
    with pytest.raises(KeyConflictError, match=CONFLICT):
        job({**event, "total": 6})
    with pytest.raises(BadRequestError, match="only JSON values"):
        pay_once(MemoryStore())("o-1", object())


def test_version_with_other_content_is_a_conflict_and_older_version_a_duplicate() -> None:
    """C3, C5: only the same version must have the same content."""

    @idempotent(
        MemoryStore(),
        key=lambda version, _text: Key("order", mark=version),
        content=lambda _version, text: text,
        name="job",
        metrics=NO_METRICS,
    )
    def job(_version: int, text: str) -> str:
        return text

    assert [job(2, "two"), job(1, "one"), job(3, "three"), job(3, "three")] == ["two", "two", "three", "three"]
    with pytest.raises(KeyConflictError, match=CONFLICT):
        job(3, "other")


def test_coroutines_have_the_same_check() -> None:
    """C22: one engine."""

    @idempotent(AsyncMemoryStore(), key=lambda _amount: "k", content=lambda amount: amount, metrics=NO_METRICS)
    async def pay(amount: int) -> int:
        return amount

    async def call() -> None:
        assert (await pay(5), await pay(5)) == (5, 5)
        with pytest.raises(KeyConflictError, match=CONFLICT):
            await pay(6)

    asyncio.run(call())


def test_content_hash_of_a_key_is_compared_by_consumer_and_checker() -> None:
    """C5: whoever makes the key; a message with such a conflict is a dead letter, because no retry can help."""
    store, dead = MemoryStore(), []
    consumer = IdempotentConsumer(
        store,
        lambda message: message.body,
        NO_METRICS,
        name="consumer",
        identify=lambda message: Key("k", content_hash=message.body),
        dead_letter=lambda message, error: dead.append((message.id, type(error))),
    )
    assert consumer.process_batch([Message("m-1", body="a"), Message("m-2", body="a"), Message("m-3", body="b")]) == []
    assert dead == [("m-3", KeyConflictError)]
    with pytest.raises(KeyConflictError, match=CONFLICT):
        IdempotencyChecker(store).mark_processing(Key("consumer:k", content_hash="b"), MINUTE)


@pytest.mark.parametrize("content_hash", ["a:b", "a b", "ä", "a" * 101, None])
def test_content_hash_that_a_store_could_not_keep_is_refused(content_hash: Any) -> None:
    """C4: in Redis a colon separates it from the token."""
    with pytest.raises(BadRequestError, match="content hash must have at most 100"):
        Key("k", content_hash=content_hash)


def test_content_must_be_a_function() -> None:
    """C5: when the job is decorated, not when it is called."""
    with pytest.raises(ConfigError, match="content must be a function, not a str"):
        idempotent(MemoryStore(), key=str, content=cast("Any", "amount"))
