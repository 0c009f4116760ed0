"""C5: `@idempotent` with each store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import Key, KeyStatus, NoMetrics, current_claim, idempotent
from grantwire_idempotency.errors import BadRequestError, InternalError, LeaseLostError, RequestInProgressError
from tests.support.concurrency import run_concurrently
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable

    from grantwire_idempotency import Store
    from layers.idempotency.tests.integration.harness import Harness, MemoryHarness, PostgresHarness, RedisHarness
    from tests.support.fixtures import Rows

LEASE = timedelta(minutes=5)


def create_job(store: Store, work: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a job whose argument is its key."""
    job: Callable[[str], Any] = idempotent(
        store, key=lambda order: order, lease=LEASE, name="job", metrics=NoMetrics()
    )(work)
    return job


class Suite:
    """The behaviour of the wrapper with any store; each subclass provides a harness."""

    @pytest.fixture
    def store(self, harness: Harness) -> Store:
        """Return an empty store."""
        (store,) = harness.stores(1)
        return store

    def test_duplicate_returns_stored_result(self, store: Store) -> None:
        """C5: any JSON value, including NUL and lone surrogates."""
        values = [{"text": "ä\x00\ud800\U0001f600", "n": [1, 2.5, None, True]}, None, "", 10**30]
        results: list[Any] = []
        job = create_job(store, lambda _: results.pop(0))
        for number, value in enumerate(values):
            results[:] = [value, "not this one"]
            assert [job(f"o{number}"), job(f"o{number}")] == [value, value]
            assert results == ["not this one"]

    def test_failure_releases_key(self, harness: Harness) -> None:
        """C5: a retry by another worker runs, for any error text."""

        def fail(_: str) -> None:
            raise ValueError("\x00\ud800" + "x" * 100_000)

        first, second = harness.stores(2)
        with pytest.raises(ValueError, match="x"):
            create_job(first, fail)("o1")
        state = first.get_result(Key("job:o1"))
        assert state is not None
        assert state.status is KeyStatus.FAILED
        assert (state.error or "").startswith("ValueError: ")
        assert create_job(second, lambda _: "second")("o1") == "second"

    def test_key_in_progress_raises_retryable_error(self, harness: Harness) -> None:
        """C5: the other worker gets the result afterwards; each has its own connection."""
        started, may_end = threading.Event(), threading.Event()

        def slow(_: str) -> str:
            started.set()
            assert may_end.wait(30)
            return "slow"

        first, second = (create_job(store, slow) for store in harness.stores(2))

        def work(number: int) -> Any:
            if number == 0:
                return first("o1")
            assert started.wait(30)
            try:
                with pytest.raises(RequestInProgressError, match="in progress"):
                    second("o1")
            finally:
                may_end.set()
            return None

        assert run_concurrently(2, work) == ["slow", None]
        assert second("o1") == "slow"

    def test_one_of_many_threads_runs(self, harness: Harness) -> None:
        """C5: for each of several keys."""
        ran: list[str] = []

        def work(order: str) -> int:
            ran.append(order)
            return len(ran)

        jobs = [create_job(store, work) for store in harness.stores(6)]
        for order in ("o1", "o2", "o3"):

            def call(number: int, order: str = order) -> object:
                try:
                    return jobs[number](order)
                except RequestInProgressError:
                    return None

            results = set(run_concurrently(6, call)) - {None}
            assert results == {len(ran)}
        assert ran == ["o1", "o2", "o3"]

    def test_lost_claim_raises_lease_lost_error(self, harness: Harness) -> None:
        """C5: another run has completed the key; a retry returns its result."""
        first, second = harness.stores(2)

        def slow(_: str) -> str:
            harness.advance(LEASE + timedelta(seconds=1))
            assert create_job(second, lambda _: "the other's")("o1") == "the other's"
            return "too late"

        with pytest.raises(LeaseLostError):
            create_job(first, slow)("o1")
        assert create_job(first, slow)("o1") == "the other's"

    def test_run_longer_than_its_claim_cannot_complete(self, harness: Harness, store: Store) -> None:
        """C20: also without a competitor."""

        def slow(_: str) -> str:
            harness.advance(LEASE + timedelta(seconds=1))
            return "slow"

        job = create_job(store, slow)
        with pytest.raises(LeaseLostError):
            job("o1")
        assert store.get_result(Key("job:o1")) is None

    def test_non_json_result_completes_key_without_result(self, store: Store) -> None:
        """C5: the call raises InternalError; the key is completed, so that the effect is not repeated."""
        ran: list[str] = []

        def work(order: str) -> object:
            ran.append(order)
            return object()

        job = create_job(store, work)
        with pytest.raises(InternalError, match="return JSON values only"):
            job("o1")
        state = store.get_result(Key("job:o1"))
        assert state is not None
        assert (state.status, state.result) == (KeyStatus.COMPLETED, None)
        assert job("o1") is None
        assert ran == ["o1"]

    def test_longest_key_is_accepted_and_longer_one_rejected(self, store: Store) -> None:
        """C5: the limit counts characters, not bytes; nothing stays claimed."""
        job = create_job(store, lambda _: "done")
        longest = "\U0001f600" * (256 - len("job:"))
        assert [job(longest), job(longest)] == ["done", "done"]
        with pytest.raises(BadRequestError, match="at most 252 characters"):
            job(f"{longest}x")


class TestMemoryStore(Suite):
    """Jobs of one process."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Provide the stores."""
        return memory_harness


class TestRedisStore(Suite):
    """Jobs that share a Redis server."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """Provide the stores."""
        return redis_harness


@newest_postgres
class TestPostgresStore(Suite):
    """Jobs that share a database."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """Provide the stores."""
        return postgres_harness

    def test_paused_run_cannot_overwrite_its_successor(self, harness: Harness, rows: Rows) -> None:
        """C20: the fencing number of the claim in the condition of the caller's own UPDATE."""
        rows.execute("CREATE TABLE reports (text text, fence bigint)")
        rows.execute("INSERT INTO reports VALUES ('', 0)")
        first, second = harness.stores(2)

        def write(text: str) -> None:
            update = "UPDATE reports SET text = %(text)s, fence = %(fence)s WHERE fence <= %(fence)s"
            rows.execute(update, {"text": text, "fence": current_claim().fence})

        def pause(_: str) -> None:
            harness.advance(LEASE + timedelta(seconds=1))
            create_job(second, lambda _: write("successor"))("o1")
            write("paused")

        with pytest.raises(LeaseLostError):
            create_job(first, pause)("o1")
        assert rows.execute("SELECT text FROM reports").fetchall() == [{"text": "successor"}]
