"""C1: the checker of document 000: is_processed, mark_processing, mark_completed, mark_failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from grantwire_idempotency.checker import IdempotencyChecker
from grantwire_idempotency.errors import (
    BadRequestError,
    ConfigError,
    InternalError,
    LeaseLostError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.stores.interface import Claim, Key, KeyState, KeyStatus
from grantwire_idempotency.stores.memory import MemoryStore
from tests.support.concurrency import at_once
from tests.unit.idempotency.doubles import Time

MINUTE = timedelta(minutes=1)


@pytest.fixture
def time() -> Time:
    """A clock that stands still."""
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    """An empty one."""
    return MemoryStore(clock=time.clock)


@pytest.fixture
def checker(store: MemoryStore) -> IdempotencyChecker:
    """A worker's."""
    return IdempotencyChecker(store)


@pytest.fixture
def another(store: MemoryStore) -> IdempotencyChecker:
    """Another worker's."""
    return IdempotencyChecker(store)


def test_only_what_is_completed_is_processed(checker: IdempotencyChecker) -> None:
    """C1: not what nobody knows, not what somebody is at, not what failed."""
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)
    assert not checker.is_processed("order:1")
    checker.mark_failed("order:1", ValueError("no"))
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")
    assert checker.is_processed("order:1")
    assert not checker.is_processed("order:2")


def test_what_has_expired_is_not_processed(checker: IdempotencyChecker, time: Time) -> None:
    """C1: 24 hours after it was completed the key is new again."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 30
    checker.mark_completed("order:1")
    time.advance(timedelta(hours=24) - timedelta(seconds=1))
    assert checker.is_processed("order:1")
    time.now += 1
    assert not checker.is_processed("order:1")
    assert checker.mark_processing("order:1", MINUTE)


def test_how_long_it_remembers_is_the_author_s_to_say(store: MemoryStore, time: Time) -> None:
    """C1: document 000 recommends up to seven days; the time of a claim is another matter."""
    checker = IdempotencyChecker(store, ttl=timedelta(days=7))
    checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")
    time.advance(timedelta(days=6))
    assert checker.is_processed("order:1")


def test_a_duplicate_is_told(checker: IdempotencyChecker, another: IdempotencyChecker, store: MemoryStore) -> None:
    """C1: False, and the first result stays."""
    checker.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1", "first")
    assert not another.mark_processing("order:1", MINUTE)
    assert not checker.mark_processing("order:1", MINUTE)
    assert store.get_result(Key("order:1")) == KeyState(KeyStatus.COMPLETED, "first")


def test_what_somebody_is_at_is_refused_for_now(checker: IdempotencyChecker, another: IdempotencyChecker) -> None:
    """C1: neither done nor this caller's."""
    checker.mark_processing("order:1", MINUTE)
    for one in (another, checker):
        with pytest.raises(RequestInProgressError):
            one.mark_processing("order:1", MINUTE)
    checker.mark_completed("order:1")


def test_a_worker_that_died_leaves_the_key_to_the_next(
    checker: IdempotencyChecker, another: IdempotencyChecker, time: Time
) -> None:
    """C1: after its time; and if it was not dead, it is told that it lost the key, and changes nothing."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 61
    assert another.mark_processing("order:1", MINUTE)
    with pytest.raises(LeaseLostError):
        checker.mark_completed("order:1", "late")
    checker.mark_failed("order:1", "late")
    assert not another.is_processed("order:1")
    another.mark_completed("order:1", "in time")
    assert checker.is_processed("order:1")


def test_a_worker_that_is_late_but_alone_may_finish(checker: IdempotencyChecker, time: Time) -> None:
    """C4: nobody took the key."""
    checker.mark_processing("order:1", MINUTE)
    time.now += 61
    checker.mark_completed("order:1")
    assert checker.is_processed("order:1")


def test_the_error_of_a_failure_may_be_looked_up(checker: IdempotencyChecker, store: MemoryStore) -> None:
    """C1: the text of an exception, its kind if it has none, or what the caller says."""
    errors: dict[str, BaseException | str] = {
        "no money": ValueError("no money"),
        "KeyError()": KeyError(),
        "odd": "odd",
    }
    for kept, error in errors.items():
        checker.mark_processing("order:1", MINUTE)
        checker.mark_failed("order:1", error)
        assert store.get_result(Key("order:1")) == KeyState(KeyStatus.FAILED, error=kept)


def test_only_who_claimed_a_key_completes_it(checker: IdempotencyChecker, another: IdempotencyChecker) -> None:
    """C1: anything else is a bug, and changes nothing."""
    with pytest.raises(InternalError, match="requires a mark_processing"):
        checker.mark_completed("order:1")
    checker.mark_processing("order:1", MINUTE)
    with pytest.raises(InternalError, match="requires a mark_processing"):
        another.mark_completed("order:1")
    assert not checker.is_processed("order:1")
    checker.mark_completed("order:1")
    with pytest.raises(InternalError, match="requires a mark_processing"):
        checker.mark_completed("order:1")


def test_a_failure_of_what_nobody_claimed_changes_nothing(
    checker: IdempotencyChecker, another: IdempotencyChecker, store: MemoryStore
) -> None:
    """C1: so that an error handler around all of it does no harm."""
    another.mark_failed("order:1", "never claimed")
    assert store.get_result(Key("order:1")) is None
    checker.mark_processing("order:1", MINUTE)
    another.mark_failed("order:1", "not mine")
    checker.mark_completed("order:1")
    checker.mark_failed("order:1", "too late")
    assert checker.is_processed("order:1")


def test_versions_of_one_key_are_told_apart(checker: IdempotencyChecker, time: Time) -> None:
    """C3: version 2 processed, version 1 skipped, version 3 new; a late end of one is not taken for another's."""
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


def test_the_same_key_with_more_about_the_message_is_the_same_claim(checker: IdempotencyChecker) -> None:
    """C1: message id and type are for people."""
    checker.mark_processing(Key("order:1", message_id="m-1", message_type="order.created"), MINUTE)
    checker.mark_completed("order:1")
    assert checker.is_processed("order:1")


class Fragile(MemoryStore):
    """A store that is down when it matters."""

    down = False

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """Unless it is down."""
        if self.down:
            raise RetryableError("temporarily unavailable")
        super().store_result(claim, result, ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """Unless it is down."""
        if self.down:
            raise RetryableError("temporarily unavailable")
        super().store_failure(claim, error, ttl)


def test_what_the_store_did_not_take_may_be_said_again() -> None:
    """C1: the claim is remembered until the store has the outcome."""
    store = Fragile()
    checker = IdempotencyChecker(store)
    checker.mark_processing("done", MINUTE)
    checker.mark_processing("failed", MINUTE)
    store.down = True
    with pytest.raises(RetryableError):
        checker.mark_completed("done")
    with pytest.raises(RetryableError):
        checker.mark_failed("failed", "no")
    store.down = False
    checker.mark_completed("done")
    checker.mark_failed("failed", "no")
    assert checker.is_processed("done")
    assert checker.mark_processing("failed", MINUTE)


def test_of_many_at_once_one_works(checker: IdempotencyChecker) -> None:
    """C1: threads that share a checker; never two, never none."""
    for number in range(20):
        key = f"order:{number}"

        def take(_: int, key: str = key) -> bool:
            try:
                return checker.mark_processing(key, MINUTE)
            except RequestInProgressError:
                return False

        assert at_once(8, take).count(True) == 1
        checker.mark_completed(key)


def test_nothing_is_remembered_of_what_is_over(checker: IdempotencyChecker) -> None:
    """A consumer that runs for weeks does not grow."""
    for number in range(10):
        checker.mark_processing(f"order:{number}", MINUTE)
        if number % 2:
            checker.mark_completed(f"order:{number}")
        else:
            checker.mark_failed(f"order:{number}", "no")
    assert checker._claims == {}  # noqa: SLF001 - it is what must not grow


@pytest.mark.parametrize("key", ["", " ", "x" * 257, "a\x00b", None])
def test_a_bad_key_is_refused_and_nothing_is_left_in_progress(checker: IdempotencyChecker, key: Any) -> None:
    """C1: by every method."""
    for call in (
        lambda: checker.is_processed(key),
        lambda: checker.mark_processing(key, MINUTE),
        lambda: checker.mark_completed(key),
        lambda: checker.mark_failed(key, "no"),
    ):
        with pytest.raises(BadRequestError, match="idempotency key"):
            call()


def test_a_checker_without_a_store_or_with_a_bad_time_is_refused(store: MemoryStore) -> None:
    """C5: when it is put together."""
    with pytest.raises(ConfigError, match="store must be a Store"):
        IdempotencyChecker(None)  # type: ignore[arg-type]
    for ttl in (None, timedelta(0), 60):
        with pytest.raises(ConfigError, match="ttl must be a positive timedelta"):
            IdempotencyChecker(store, ttl=ttl)  # type: ignore[arg-type]
