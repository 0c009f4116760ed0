"""C22: asynchronous stores, wrapper and consumer, driven by the same engine."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from grantwire_idempotency import (
    AsyncIdempotentConsumer,
    AsyncMemoryStore,
    AsyncPostgresStore,
    AsyncRedisStore,
    Claim,
    Duplicate,
    FailMode,
    InProgress,
    Key,
    KeyState,
    KeyStatus,
    Message,
    NoMetrics,
    Outcome,
    by_version,
    connect_redis_async,
    current_async_claim,
    entity_key,
    idempotent,
)
from grantwire_idempotency.errors import ConfigError, LeaseLostError, RequestInProgressError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from grantwire_idempotency import AsyncStore
    from tests.support.valkey import ValkeyServer

pytestmark = newest_postgres

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")
NO_METRICS = NoMetrics()

Test = "Callable[[AsyncStore], Awaitable[None]]"


@pytest.fixture(params=["memory", "redis", "redis-fences", "dsn", "connection", "pool"])
def run(request: pytest.FixtureRequest, database_url: str, valkey_server: ValkeyServer) -> Callable[[Any], None]:
    """Return a function that runs a test with an asynchronous store in its own event loop."""

    @asynccontextmanager
    async def open_store() -> AsyncIterator[AsyncStore]:
        match request.param:
            case "memory":
                yield AsyncMemoryStore()
            case "redis" | "redis-fences":
                async with connect_redis_async(valkey_server.url) as client:
                    await client.flushall()
                    yield AsyncRedisStore(client, fences=request.param == "redis-fences")
            case "dsn":
                store = AsyncPostgresStore(database_url)
                yield store
                await store.close()
            case "connection":
                async with await psycopg.AsyncConnection.connect(database_url) as connection:
                    yield AsyncPostgresStore(connection)
            case _:
                async with AsyncConnectionPool(database_url, min_size=1, max_size=3, open=False) as pool:
                    yield AsyncPostgresStore(pool)

    def run_test(test: Any) -> None:
        async def main() -> None:
            async with open_store() as store:
                await test(store)

        asyncio.run(main())

    return run_test


def test_store_claims_completes_and_releases(run: Callable[[Any], None]) -> None:
    """C22: the guarantees of a store, by the same SQL and the same scripts as the synchronous one."""

    async def test(store: AsyncStore) -> None:
        claim = await store.check(KEY, MINUTE, "token")
        assert isinstance(claim, Claim)
        assert isinstance(await store.check(KEY, MINUTE), InProgress)
        assert isinstance(await store.check(KEY, MINUTE, "token"), Claim)
        await store.extend(claim, DAY)
        await store.store_failure(claim, "no", DAY)
        with pytest.raises(LeaseLostError):
            await store.extend(claim, DAY)
        assert await store.get_result(KEY) == KeyState(KeyStatus.FAILED, error="no")
        again = await store.check(KEY, MINUTE)
        assert isinstance(again, Claim)
        assert again.last_error == "no"
        assert again.fence > claim.fence or again.fence == claim.fence == 0  # without fences=True
        await store.store_result(again, "done", DAY)
        assert await store.check(KEY, MINUTE) == Duplicate(KEY, "done")
        assert await store.cleanup() == 0

    run(test)


def test_one_of_many_tasks_runs(run: Callable[[Any], None]) -> None:
    """C22: concurrent calls with one key; afterwards each gets the stored result."""

    async def test(store: AsyncStore) -> None:
        runs: list[str] = []

        @idempotent(store, key=lambda order: order, name="job", metrics=NO_METRICS)
        async def job(order: str) -> str:
            runs.append(order)
            await current_async_claim().extend(DAY)
            await asyncio.sleep(0.01)
            return f"{order} sold"

        results = await asyncio.gather(*(job("o1") for _ in range(10)), return_exceptions=True)
        assert runs == ["o1"]
        assert Counter(type(result) for result in results)[str] >= 1
        assert {type(result) for result in results} <= {str, RequestInProgressError}
        assert await job("o1") == "o1 sold"

    run(test)


def test_cancelled_task_releases_its_key(run: Callable[[Any], None]) -> None:
    """C22: a cancellation is a failure of the work."""

    async def test(store: AsyncStore) -> None:
        started = asyncio.Event()
        blocks = True

        @idempotent(store, key=lambda order: order, name="job", metrics=NO_METRICS)
        async def job(order: str) -> str:
            started.set()
            if blocks:
                await asyncio.Event().wait()
            return order

        task = asyncio.create_task(job("o1"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        blocks = False
        assert await job("o1") == "o1"

    run(test)


@pytest.mark.parametrize("run", ["memory", "redis-fences", "dsn"], indirect=True)
def test_work_gets_a_higher_fencing_number_than_its_predecessor(run: Callable[[Any], None]) -> None:
    """C20, C22: the coroutine writes it with its effect."""

    async def test(store: AsyncStore) -> None:
        fences: list[int] = []

        @idempotent(store, key=lambda order: order, name="job", metrics=NO_METRICS)
        async def job(_order: str) -> str:
            fences.append(current_async_claim().fence)
            if len(fences) < 3:
                raise OSError("no")
            return "done"

        for _ in range(2):
            with pytest.raises(OSError, match="no"):
                await job("o1")
        assert await job("o1") == await job("o1") == "done"
        assert 0 < fences[0] < fences[1] < fences[2]

    run(test)


def test_consumer_retries_and_passes_dead_letters(run: Callable[[Any], None]) -> None:
    """C22: the same rules as the synchronous consumer."""

    async def test(store: AsyncStore) -> None:
        attempts: Counter[str] = Counter()
        dead_letters: list[str] = []

        async def process(message: Message) -> str:
            attempts[message.id] += 1
            if message.id == "bad" or attempts[message.id] < 2:
                raise OSError("no")
            return "done"

        async def save(message: Message, _error: Exception) -> None:
            dead_letters.append(message.id)

        async def no_sleep(_: float) -> None:
            return

        consumer = AsyncIdempotentConsumer(
            store, process, NO_METRICS, name="consumer", dead_letter=save, sleep=no_sleep
        )
        event = {"Records": [{"messageId": name, "body": "{}"} for name in ("good", "bad")]}
        for _ in range(2):
            assert await consumer.handle_sqs(event) == {"batchItemFailures": []}
        assert attempts == {"good": 2, "bad": 3}
        assert dead_letters == ["bad"]
        assert await consumer.process(Message("good")) == Outcome("done", replayed=True)

    run(test)


def test_wiring_does_not_mix_the_two(database_url: str) -> None:
    """C22: a coroutine function needs an asynchronous store, and a plain function a synchronous one."""

    async def job(_: str) -> None: ...

    from grantwire_idempotency import MemoryStore  # noqa: PLC0415 - the wrong store

    with pytest.raises(ConfigError, match="an asynchronous store"):
        idempotent(MemoryStore(), key=str, name="job")(job)
    with pytest.raises(ConfigError, match="must not be asynchronous"):
        idempotent(AsyncMemoryStore(), key=str, name="job")(print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="an asynchronous store"):
        AsyncIdempotentConsumer(MemoryStore(), job, name="job")  # type: ignore[call-overload]
    with psycopg.connect(database_url) as connection, pytest.raises(ConfigError, match="AsyncConnection"):
        AsyncPostgresStore(connection)  # type: ignore[arg-type]


def test_dsn_store_works_in_a_second_event_loop(database_url: str) -> None:
    """C22: a connection belongs to one loop, so each loop gets its own."""
    store = AsyncPostgresStore(database_url, fail_mode=FailMode.CLOSED)

    async def use(value: str) -> None:
        assert isinstance(await store.check(Key(value), MINUTE), Claim)
        await store.close()

    asyncio.run(use("one"))
    asyncio.run(use("two"))


def test_connections_of_ended_event_loops_are_closed(database_url: str) -> None:
    """C22: a program that calls `asyncio.run` for each job does not collect connections."""
    store = AsyncPostgresStore(database_url)

    async def use(value: str) -> None:
        assert isinstance(await store.check(Key(value), MINUTE), Claim)

    for number in range(5):
        asyncio.run(use(str(number)))
    asyncio.run(store.close())
    assert count_sessions(database_url) == 0


def test_cancelled_call_leaves_the_connection_of_the_user_usable(database_url: str) -> None:
    """C16, C22: without autocommit, the call has a transaction, which must not stay open."""

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            store = AsyncPostgresStore(connection)
            with psycopg.connect(database_url) as other:
                other.execute("LOCK TABLE processed_messages IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(store.check(KEY, MINUTE), 0.1)
                other.rollback()
            assert isinstance(await store.check(KEY, MINUTE), Claim)

    asyncio.run(main())


def count_sessions(url: str) -> int:
    """Return the number of other sessions in the database, when the server has ended those that were closed."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute(query).fetchone()
            assert row is not None
            if row[0] == 0 or time.monotonic() > deadline:
                return int(row[0])
            time.sleep(0.02)


def test_concurrent_batch_keeps_the_order_of_each_entity(run: Callable[[Any], None]) -> None:
    """C30: different orders at the same time, and every version of an order in turn: none is skipped or returned."""

    async def test(store: AsyncStore) -> None:
        versions: dict[str, list[int]] = defaultdict(list)
        running = most = 0
        two_run = asyncio.Event()

        async def process(message: Message[dict[str, Any]]) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running > 1:
                two_run.set()
            await two_run.wait()
            running -= 1
            versions[message.payload["id"]].append(message.payload["version"])

        consumer = AsyncIdempotentConsumer(
            store, process, NO_METRICS, name="concurrent", identify=by_version(entity_key("order", "id"))
        )
        messages = [
            Message[dict[str, Any]](f"m-{order}-{version}", body=json.dumps({"id": f"o-{order}", "version": version}))
            for version in range(1, 6)
            for order in range(6)
        ]
        assert await consumer.process_batch(messages, concurrency=4) == []
        assert versions == {f"o-{order}": [1, 2, 3, 4, 5] for order in range(6)}
        assert most <= 4
        assert await consumer.process_batch(messages, concurrency=4) == []
        assert sum(map(len, versions.values())) == 30

    run(test)


def test_cancelled_batch_leaves_no_claim(run: Callable[[Any], None]) -> None:
    """C24, C30: every key that was claimed is free when the call has ended."""

    async def test(store: AsyncStore) -> None:
        three_run = asyncio.Event()
        started: list[str] = []

        async def process(message: Message) -> None:
            started.append(message.id)
            if len(started) == 3:
                three_run.set()
            await asyncio.Event().wait()

        consumer = AsyncIdempotentConsumer(store, process, NO_METRICS, name="cancelled")
        messages = [Message(f"m-{number}") for number in range(6)]
        task = asyncio.create_task(consumer.process_batch(messages, concurrency=3))
        await three_run.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for message in messages:
            assert isinstance(await store.check(Key(f"cancelled:{message.id}"), MINUTE), Claim)

    run(test)
