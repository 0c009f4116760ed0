"""C5: `@idempotent` on each store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import Key, KeyStatus, NoMetrics, idempotent
from grantwire_idempotency.errors import BadRequestError, InternalError, LeaseLostError, RequestInProgressError
from tests.support.concurrency import at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency import Store
    from tests.integration.idempotency.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness

LEASE = timedelta(minutes=5)


def guarded(store: Store, work: Callable[[str], Any]) -> Callable[[str], Any]:
    """A job whose argument is its key."""
    return idempotent(store, key=lambda order: order, lease=LEASE, name="job", metrics=NoMetrics())(work)


class Suite:
    """What the wrapper does with every store; each subclass has a harness of its own."""

    @pytest.fixture
    def store(self, harness: Harness) -> Store:
        """A store without keys."""
        (store,) = harness.stores(1)
        return store

    def test_a_duplicate_is_skipped_with_the_first_result(self, store: Store) -> None:
        """C5: whatever JSON can say, NUL and lone surrogates included."""
        values = [{"text": "ä\x00\ud800\U0001f600", "n": [1, 2.5, None, True]}, None, "", 10**30]
        results: list[Any] = []
        job = guarded(store, lambda _: results.pop(0))
        for number, value in enumerate(values):
            results[:] = [value, "not this one"]
            assert [job(f"o{number}"), job(f"o{number}")] == [value, value]
            assert results == ["not this one"]

    def test_a_failed_run_frees_its_key(self, harness: Harness) -> None:
        """C5: the retry, by another worker, runs; whatever the error's text is."""

        def fail(_: str) -> None:
            raise ValueError("\x00\ud800" + "x" * 100_000)

        one, other = harness.stores(2)
        with pytest.raises(ValueError, match="x"):
            guarded(one, fail)("o1")
        kept = one.get_result(Key("job:o1"))
        assert kept is not None
        assert kept.status is KeyStatus.FAILED
        assert (kept.error or "").startswith("ValueError: ")
        assert guarded(other, lambda _: "second")("o1") == "second"

    def test_while_one_runs_another_is_told_to_come_back(self, harness: Harness) -> None:
        """C5: then it gets the result; the two have connections of their own."""
        began, may_end = threading.Event(), threading.Event()

        def slow(_: str) -> str:
            began.set()
            assert may_end.wait(30)
            return "slow"

        one, other = (guarded(store, slow) for store in harness.stores(2))

        def work(number: int) -> Any:
            if number == 0:
                return one("o1")
            assert began.wait(30)
            try:
                with pytest.raises(RequestInProgressError, match="in progress"):
                    other("o1")
            finally:
                may_end.set()
            return None

        assert at_once(2, work) == ["slow", None]
        assert other("o1") == "slow"

    def test_of_many_at_once_one_runs(self, harness: Harness) -> None:
        """C5: for each of several keys."""
        ran: list[str] = []

        def work(order: str) -> int:
            ran.append(order)
            return len(ran)

        jobs = [guarded(store, work) for store in harness.stores(6)]
        for order in ("o1", "o2", "o3"):

            def call(number: int, order: str = order) -> object:
                try:
                    return jobs[number](order)
                except RequestInProgressError:
                    return None

            results = set(at_once(6, call)) - {None}
            assert results == {len(ran)}
        assert ran == ["o1", "o2", "o3"]

    def test_a_run_that_outlives_its_claim_is_told_so(self, harness: Harness) -> None:
        """C5: another has run meanwhile; a retry gets what that one stored."""
        one, other = harness.stores(2)

        def slow(_: str) -> str:
            harness.advance(LEASE + timedelta(seconds=1))
            assert guarded(other, lambda _: "the other's")("o1") == "the other's"
            return "too late"

        with pytest.raises(LeaseLostError):
            guarded(one, slow)("o1")
        assert guarded(one, slow)("o1") == "the other's"

    def test_a_slow_run_is_kept_if_nobody_came_between(self, harness: Harness, store: Store) -> None:
        """C5: it took longer than its claim, and no harm was done."""

        def slow(_: str) -> str:
            harness.advance(LEASE + timedelta(seconds=1))
            return "slow"

        job = guarded(store, slow)
        assert [job("o1"), job("o1")] == ["slow", "slow"]

    def test_a_result_that_is_no_json_leaves_nothing_in_progress(self, store: Store) -> None:
        """C5: a clear error; the key is completed, so that nobody repeats the effect."""
        ran: list[str] = []

        def work(order: str) -> object:
            ran.append(order)
            return object()

        job = guarded(store, work)
        with pytest.raises(InternalError, match="return JSON values only"):
            job("o1")
        kept = store.get_result(Key("job:o1"))
        assert kept is not None
        assert (kept.status, kept.result) == (KeyStatus.COMPLETED, None)
        assert job("o1") is None
        assert ran == ["o1"]

    def test_the_longest_key_fits_and_a_longer_one_is_refused(self, store: Store) -> None:
        """C5: in characters, not bytes; nothing is left in progress."""
        job = guarded(store, lambda _: "done")
        longest = "\U0001f600" * (256 - len("job:"))
        assert [job(longest), job(longest)] == ["done", "done"]
        with pytest.raises(BadRequestError, match="at most 252 characters"):
            job(f"{longest}x")


class TestMemoryStore(Suite):
    """Jobs of one process."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Its clock is a number."""
        return memory_harness


class TestRedisStore(Suite):
    """Jobs that share a Redis."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """On the Valkey of all tests."""
        return redis_harness


class TestPostgresStore(Suite):
    """Jobs that share a database."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """In one database for all of these tests."""
        return postgres_harness
