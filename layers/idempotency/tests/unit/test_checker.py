"""C1: the checker of document 000: is_processed, mark_processing, mark_completed, mark_failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire_idempotency import Claim, IdempotencyChecker, Key, KeyState, KeyStatus, MemoryStore
from grantwire_idempotency.errors import (
    BadRequestError,
    ConfigError,
    LeaseLostError,
    RequestInProgressError,
    RetryableError,
)
from layers.idempotency.tests.unit.doubles import FakeTime
from tests.support.concurrency import run_concurrently

MINUTE = timedelta(minutes=1)


@pytest.fixture
def time() -> FakeTime:
    """Return a clock that does not advance on its own."""
    return FakeTime()


@pytest.fixture
def store(time: FakeTime) -> MemoryStore:
    """Return an empty store."""
    return MemoryStore(clock=time.clock)


@pytest.fixture
def checker(store: MemoryStore) -> IdempotencyChecker:
    """Return the checker of one worker."""
    return IdempotencyChecker(store)


@pytest.fixture
def other_checker(store: MemoryStore) -> IdempotencyChecker:
    """Return the checker of another worker."""
    return IdempotencyChecker(store)


def test_is_processed_is_true_only_for_completed_key(checker: IdempotencyChecker) -> None:
    """C1: an unknown key, a key in progress and a failed key are not processed."""
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)
    assert not checker.is_processed("order:1")
    checker.mark_failed("order:1", ValueError("no"))
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")
    assert checker.is_processed("order:1")
    assert not checker.is_processed("order:2")


def test_expired_key_is_not_processed(checker: IdempotencyChecker, time: FakeTime) -> None:
    """C1: 24 hours after its completion, the key is new again."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 30
    checker.mark_completed("order:1")
    time.advance(timedelta(hours=24) - timedelta(seconds=1))
    assert checker.is_processed("order:1")
    time.now += 1
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)


def test_ttl_can_be_configured(store: MemoryStore, time: FakeTime) -> None:
    """C1: document 000 recommends up to seven days; the TTL of a claim is independent of it."""
    checker = IdempotencyChecker(store, ttl=timedelta(days=7))
    checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")
    time.advance(timedelta(days=6))
    assert checker.is_processed("order:1")


def test_mark_processing_returns_false_for_duplicate(
    checker: IdempotencyChecker, other_checker: IdempotencyChecker, store: MemoryStore
) -> None:
    """C1: a duplicate gets False, and the stored result does not change."""
    checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1", "first")
    assert not other_checker.mark_processing("order:1", MINUTE)
    assert not checker.mark_processing("order:1", MINUTE)
    assert store.get_result(Key("order:1")) == KeyState(KeyStatus.COMPLETED, "first")


def test_key_in_progress_raises_retryable_error(checker: IdempotencyChecker, other_checker: IdempotencyChecker) -> None:
    """C1: a claimed key raises RequestInProgressError, also for the checker that claimed it."""
    checker.mark_processing("order:1", MINUTE)
    for one in (other_checker, checker):
        with pytest.raises(RequestInProgressError):
            one.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")


def test_expired_claim_can_be_taken_over(
    checker: IdempotencyChecker, other_checker: IdempotencyChecker, time: FakeTime
) -> None:
    """C1: after its TTL, another worker can claim the key; the first worker gets LeaseLostError and changes nothing."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 61
    assert other_checker.mark_processing("order:1", MINUTE)
    with pytest.raises(LeaseLostError):
        checker.mark_completed("order:1", "late")
    checker.mark_failed("order:1", "late")
    assert not other_checker.is_processed("order:1")
    other_checker.mark_completed("order:1", "in time")
    assert checker.is_processed("order:1")


def test_expired_claim_cannot_be_completed(checker: IdempotencyChecker, time: FakeTime) -> None:
    """C20: also if no other worker has claimed the key."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 61
    with pytest.raises(LeaseLostError):
        checker.mark_completed("order:1")
    assert not checker.is_processed("order:1")


def test_mark_failed_stores_error(checker: IdempotencyChecker, store: MemoryStore) -> None:
    """C1: the store keeps the text of an exception, its repr if the text is empty, or the given string."""
    errors: dict[str, BaseException | str] = {
        "no money": ValueError("no money"),
        "KeyError()": KeyError(),
        "odd": "odd",
    }
    for kept, error in errors.items():
        checker.mark_processing("order:1", MINUTE)
        checker.mark_failed("order:1", error)
        assert store.get_result(Key("order:1")) == KeyState(KeyStatus.FAILED, error=kept)


def test_key_is_marked_by_another_checker(
    checker: IdempotencyChecker, other_checker: IdempotencyChecker, store: MemoryStore, time: FakeTime
) -> None:
    """C30, 000: by its key alone, as after a restart; a claim that is live belongs to the checker that made it."""
    checker.mark_processing("order:1", MINUTE)
    with pytest.raises(RequestInProgressError):
        other_checker.mark_completed("order:1", "not mine")
    other_checker.mark_failed("order:1", "not mine")
    assert store.get_result(Key("order:1")) == KeyState(KeyStatus.IN_PROGRESS)
    time.now += 61
    other_checker.mark_failed("order:1", "it died")
    assert store.get_result(Key("order:1")) == KeyState(KeyStatus.FAILED, error="it died")
    for result in ("done", "again"):
        other_checker.mark_completed("order:1", result)
        assert store.get_result(Key("order:1")) == KeyState(KeyStatus.COMPLETED, "done")
    with pytest.raises(LeaseLostError):
        checker.mark_completed("order:1", "late")


def test_mark_failed_of_a_completed_key_changes_nothing(checker: IdempotencyChecker, store: MemoryStore) -> None:
    """C1: so a general error handler can call it safely."""
    checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1", "done")
    checker.mark_failed("order:1", "too late")
    assert store.get_result(Key("order:1")) == KeyState(KeyStatus.COMPLETED, "done")


def test_versions_of_one_key_have_separate_claims(checker: IdempotencyChecker, time: FakeTime) -> None:
    """C3: after version 2, version 1 is a duplicate and 3 is new; a late version 3 does not complete version 4."""
    second, third = Key("order:1", mark=2), Key("order:1", mark=3)
    assert checker.mark_processing(second, MINUTE)
    checker.mark_completed(second)
    assert checker.is_processed(Key("order:1", mark=1))
    assert not checker.mark_processing(Key("order:1", mark=1), MINUTE)
    assert not checker.is_processed(third)
    assert checker.mark_processing(third, MINUTE)
    time.now += 61
    fourth = Key("order:1", mark=4)
    assert checker.mark_processing(fourth, MINUTE)
    with pytest.raises(LeaseLostError):
        checker.mark_completed(third)
    checker.mark_completed(fourth)
    assert checker.is_processed(fourth)


def test_message_id_and_type_are_not_part_of_the_claim(checker: IdempotencyChecker) -> None:
    """C1: a key with a message id and type is the same key without them."""
    checker.mark_processing(Key("order:1", message_id="m-1", message_type="order.created"), MINUTE)
    checker.mark_completed("order:1")
    assert checker.is_processed("order:1")


class UnavailableStore(MemoryStore):
    """A store that cannot store outcomes while it is down."""

    down = False

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Fail while the store is down."""
        if self.down:
            raise RetryableError("temporarily unavailable")
        super().store_result(claim, result, ttl, order_ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """Fail while the store is down."""
        if self.down:
            raise RetryableError("temporarily unavailable")
        super().store_failure(claim, error, ttl)


def test_outcome_can_be_stored_again_after_outage() -> None:
    """C1: the checker keeps its claim until the store has the outcome."""
    store = UnavailableStore()
    checker = IdempotencyChecker(store)
    checker.mark_processing("done", MINUTE)
    checker.mark_processing("failed", MINUTE)
    store.down = True
    with pytest.raises(RetryableError):
        checker.mark_completed("done")
    with pytest.raises(RetryableError):
        checker.mark_completed("unclaimed")
    with pytest.raises(RetryableError):
        checker.mark_failed("failed", "no")
    store.down = False
    checker.mark_completed("done")
    checker.mark_completed("unclaimed")
    checker.mark_failed("failed", "no")
    assert checker.is_processed("done")
    assert checker.is_processed("unclaimed")
    assert checker.mark_processing("failed", MINUTE)


def test_one_of_many_threads_gets_the_key(checker: IdempotencyChecker) -> None:
    """C1: of the threads that share a checker, exactly one gets True."""
    for number in range(20):
        key = f"order:{number}"

        def take(_: int, key: str = key) -> bool:
            try:
                return checker.mark_processing(key, MINUTE)
            except RequestInProgressError:
                return False

        assert run_concurrently(8, take).count(True) == 1
        checker.mark_completed(key)


def test_checker_forgets_finished_claims(checker: IdempotencyChecker) -> None:
    """The memory of a long-running consumer does not grow."""
    for number in range(10):
        checker.mark_processing(f"order:{number}", MINUTE)
        if number % 2:
            checker.mark_completed(f"order:{number}")
        else:
            checker.mark_failed(f"order:{number}", "no")
    assert checker._claims == {}  # noqa: SLF001 - it is what must not grow


@pytest.mark.parametrize("key", ["", " ", "x" * 257, "a\x00b", None])
def test_invalid_key_is_rejected_by_every_method(checker: IdempotencyChecker, key: Any) -> None:
    """C1: an invalid key is rejected, and nothing is claimed."""
    for call in (
        lambda: checker.is_processed(key),
        lambda: checker.mark_processing(key, MINUTE),
        lambda: checker.mark_completed(key),
        lambda: checker.mark_failed(key, "no"),
    ):
        with pytest.raises(BadRequestError, match="idempotency key"):
            call()


def test_invalid_store_or_ttl_raises_config_error(store: MemoryStore) -> None:
    """C5: creating a checker validates its arguments."""
    with pytest.raises(ConfigError, match="store must be a Store"):
        IdempotencyChecker(None)  # type: ignore[arg-type]
    for ttl in (None, timedelta(0), 60):
        with pytest.raises(ConfigError, match="ttl must be a positive timedelta"):
            IdempotencyChecker(store, ttl=ttl)  # type: ignore[arg-type]
