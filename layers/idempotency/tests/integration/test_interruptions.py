"""C24: an interruption while the result is stored loses neither the result nor the key."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from redis import Redis

from grantwire_idempotency import (
    AsyncPostgresStore,
    AsyncRedisStore,
    FailMode,
    InboxGuard,
    Message,
    NoMetrics,
    Outcome,
    PostgresStore,
    RedisStore,
    connect_redis,
    connect_redis_async,
    idempotent,
)
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from grantwire_idempotency import AsyncStore, Store
    from tests.support.valkey import ValkeyServer

__all__ = ["database_url"]

pytestmark = newest_postgres

# How long the store call runs before it is interrupted. The server does not respond before.
SECONDS = 0.05
RELEASE_SECONDS = 2.0


class TimeLimitError(Exception):
    """A time limit, as RQ and Celery raise it in a signal handler."""


class Held:
    """A server that does not respond to the record of a result until it is released."""

    def __init__(self, url: str | None, client: Redis) -> None:
        self._client = client
        self._connection = None if url is None else psycopg.connect(url)

    def hold(self) -> None:
        """Lock the row of every key, or pause every write."""
        if self._connection is not None:
            self._connection.execute("SELECT FROM processed_messages FOR UPDATE")
        else:
            self._client.client_pause(600_000, all=False)

    def release(self) -> None:
        """Let the server respond."""
        if self._connection is not None:
            self._connection.rollback()
        else:
            self._client.client_unpause()

    def close(self) -> None:
        """Release everything."""
        self.release()
        if self._connection is not None:
            self._connection.close()


class Announcing:
    """A store that announces each record of a result, directly before it is sent, to the next of some functions."""

    def __init__(self, store: Any, *announce: Callable[[], object]) -> None:
        self._store = store
        self._announce = list(announce)
        self.check, self.store_failure, self.extend = store.check, store.store_failure, store.extend
        self.get_result, self.cleanup = store.get_result, store.cleanup

    def store_result(self, *arguments: Any) -> Any:
        """See `Store`; of an asynchronous store, it returns the coroutine."""
        if self._announce:
            self._announce.pop(0)()
        return self._store.store_result(*arguments)


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[Redis]:
    """Return a client that is not interrupted."""
    with Redis.from_url(valkey_server.url) as client:
        yield client


@pytest.fixture
def held(kind: str, database_url: str, valkey: Redis) -> Iterator[Held]:
    """Return the server of the store."""
    held = Held(None if kind == "redis" else database_url, valkey)
    yield held
    held.close()


@contextmanager
def open_store(kind: str, url: str, client_url: str) -> Iterator[Store]:
    """Open a store on each kind of connection."""
    with ExitStack() as stack:
        match kind:
            case "dsn":
                store = PostgresStore(url)
                stack.callback(store.close)
                yield store
            case "pool":
                yield PostgresStore(stack.enter_context(ConnectionPool(url, min_size=1, max_size=1)))
            case "connection":
                yield PostgresStore(stack.enter_context(psycopg.connect(url)))
            case _:
                yield RedisStore(stack.enter_context(connect_redis(client_url)))


@contextmanager
def interrupted_by(error: BaseException) -> Iterator[Callable[[], object]]:
    """Raise the error in a signal handler, a moment after the call of the yielded function."""

    def handle(_number: int, _frame: object) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, handle)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def released_later(held: Held) -> Iterator[None]:
    """Let the server respond after a while in any case, because psycopg gives up a cancellation after five seconds."""
    timer = threading.Timer(RELEASE_SECONDS, held.release)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.mark.parametrize("kind", ["dsn", "pool", "connection", "redis"])
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), TimeLimitError()], ids=repr)
def test_signal_while_the_result_is_stored(
    kind: str, error: BaseException, held: Held, database_url: str, valkey_server: ValkeyServer
) -> None:
    """C24: SIGTERM, Ctrl-C and a time limit: the result is stored, and the caller gets the interruption."""
    runs: list[str] = []
    name = uuid.uuid4().hex
    with (
        open_store(kind, database_url, valkey_server.url) as store,
        interrupted_by(error) as interrupt,
        released_later(held),
    ):

        @idempotent(Announcing(store, interrupt, held.release), key=str, name=name, metrics=NoMetrics())
        def job(order: str) -> str:
            runs.append(order)
            held.hold()
            return f"{order} sold"

        with pytest.raises(type(error)) as caught:
            job("o1")
        assert caught.value is error
        held.release()

        @idempotent(store, key=str, name=name, metrics=NoMetrics())
        def job_of_another_worker(order: str) -> None:
            runs.append(order)

        assert job_of_another_worker("o1") == "o1 sold"
    assert runs == ["o1"]


@asynccontextmanager
async def open_async_store(kind: str, url: str, client_url: str) -> AsyncIterator[Any]:
    """Open an asynchronous store on each kind of connection."""
    match kind:
        case "dsn":
            store = AsyncPostgresStore(url)
            yield store
            await store.close()
        case "pool":
            async with AsyncConnectionPool(url, min_size=1, max_size=1, open=False) as pool:
                yield AsyncPostgresStore(pool)
        case "connection":
            async with await psycopg.AsyncConnection.connect(url) as connection:
                yield AsyncPostgresStore(connection)
        case _:
            async with connect_redis_async(client_url) as client:
                yield AsyncRedisStore(client)


@pytest.mark.parametrize("kind", ["dsn", "pool", "connection", "redis"])
def test_cancellation_while_the_result_is_stored(
    kind: str, held: Held, database_url: str, valkey_server: ValkeyServer
) -> None:
    """C24, C22: however often the task is cancelled, the result is stored, and the task is cancelled."""
    runs: list[str] = []

    async def main() -> None:
        recording = asyncio.Event()
        async with open_async_store(kind, database_url, valkey_server.url) as store:

            @idempotent(
                cast("AsyncStore", Announcing(store, recording.set)),
                key=str,
                name="cancelled",
                fail_mode=FailMode.CLOSED,
                metrics=NoMetrics(),
            )
            async def job(order: str) -> str:
                runs.append(order)
                held.hold()
                return f"{order} sold"

            order = uuid.uuid4().hex
            task = asyncio.create_task(job(order))
            await recording.wait()
            for _ in range(3):
                await asyncio.sleep(SECONDS)
                task.cancel()
            held.release()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await job(order) == f"{order} sold"

    asyncio.run(main())
    assert len(runs) == 1


@pytest.mark.parametrize("kind", ["dsn", "redis"])
def test_end_of_the_event_loop_while_the_result_is_stored(
    kind: str, held: Held, database_url: str, valkey_server: ValkeyServer
) -> None:
    """C24, C22: `asyncio.run` cancels every task at its end, also the one that stores the result."""
    runs: list[str] = []
    order = uuid.uuid4().hex

    async def main(*, waits: bool) -> None:
        recording = asyncio.Event()
        async with open_async_store(kind, database_url, valkey_server.url) as store:

            @idempotent(
                cast("AsyncStore", Announcing(store, recording.set, held.release)),
                key=str,
                name="ended",
                metrics=NoMetrics(),
            )
            async def job(order: str) -> str:
                runs.append(order)
                held.hold()
                return f"{order} sold"

            task = asyncio.create_task(job(order))
            if waits:
                assert await task == f"{order} sold"
            else:
                await recording.wait()
                await asyncio.sleep(SECONDS)
                for other in asyncio.all_tasks() - {asyncio.current_task()}:
                    other.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    asyncio.run(main(waits=False))
    asyncio.run(main(waits=True))
    assert runs == [order]


def test_connection_of_a_guard_is_usable_after_a_signal(database_url: str) -> None:
    """C24: a signal in the middle of its work or of its statements; nothing is committed, and a repeat runs."""
    name = uuid.uuid4().hex
    guard = InboxGuard(database_url, name=name)
    with interrupted_by(TimeLimitError()) as interrupt:

        def wait(tx: psycopg.Connection[Any]) -> None:
            interrupt()
            tx.execute("SELECT pg_sleep(60)")

        with pytest.raises(TimeLimitError):
            guard.run(Message("m1"), wait)
    assert guard.run(Message("m1"), lambda _: 5) == Outcome(5)
    guard.close()
