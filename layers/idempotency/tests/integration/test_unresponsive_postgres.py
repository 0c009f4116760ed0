"""C26: a PostgreSQL that does not respond ends in the fail mode, with a deadline on the client's side."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from grantwire_idempotency import (
    AsyncInboxGuard,
    AsyncPostgresStore,
    AsyncTransactionGuard,
    BreakerStore,
    CircuitBreaker,
    Claim,
    Duplicate,
    FailMode,
    GuardSettings,
    IdempotencyChecker,
    IdempotentConsumer,
    InboxGuard,
    Key,
    Message,
    NoMetrics,
    Outcome,
    PostgresLocks,
    PostgresStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    idempotent,
)
from grantwire_idempotency._internal.postgres.runners import statement_runner
from grantwire_idempotency.databases import NoResponseError
from grantwire_idempotency.errors import AmbiguousError, CircuitOpenError, RetryableError
from infra.local.system.processes import wait_until
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from grantwire_idempotency import AsyncStore, Store
    from tests.support.servers import Databases

__all__ = ["database_url"]

SHORT = timedelta(milliseconds=200)


@contextmanager
def stopped_backends(url: str) -> Iterator[None]:
    """Stop the server processes of all sessions of the database: they accept statements and never respond."""
    with psycopg.connect(url) as observer:
        backends = observer.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchall()
    assert backends
    for (pid,) in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for (pid,) in backends:
            os.kill(pid, signal.SIGCONT)


def respond(_tx: Any) -> StoredResponse:
    """Return a response."""
    return StoredResponse(200, "")


def request() -> RequestIdentity:
    """Return a request with a new key."""
    return RequestIdentity.create("shop", "POST /orders", uuid.uuid4().hex, {})


class Server:
    """The PostgreSQL of a test, whose sessions can be stopped."""

    def __init__(self, databases: Databases, url: str) -> None:
        self.url = url
        self._name = urlsplit(url).path.lstrip("/")
        self._admin_url = databases.cluster.url("postgres")

    def allow_connections(self, is_allowed: bool) -> None:
        """Let the database accept connections, or refuse them."""
        with psycopg.connect(self._admin_url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS {is_allowed}")

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop every backend, and refuse new connections."""
        with stopped_backends(self.url):
            self.allow_connections(False)
            try:
                yield
            finally:
                self.allow_connections(True)


@pytest.fixture
def server(databases: Databases, database_url: str) -> Server:
    """Return the server of the file's database."""
    return Server(databases, database_url)


def guarded(store: Store, fail_mode: FailMode) -> Callable[[], object]:
    """Return a call of a guarded function with a new key."""

    @idempotent(store, key=str, name=uuid.uuid4().hex, fail_mode=fail_mode, metrics=NoMetrics())
    def job(_order: str) -> str:
        return "done"

    return lambda: job(uuid.uuid4().hex)


def guarded_async(store: AsyncStore, fail_mode: FailMode) -> Callable[[], Any]:
    """Return the same for a coroutine function."""

    @idempotent(store, key=str, name=uuid.uuid4().hex, fail_mode=fail_mode, metrics=NoMetrics())
    async def job(_order: str) -> str:
        return "done"

    return lambda: job(uuid.uuid4().hex)


# What ends each part if the server does not respond: a result in the fail mode OPEN, else an error.
ENDINGS: dict[str, object] = {
    "OPEN": "done",
    "CLOSED": RetryableError,
    "breaker": RetryableError,
    "consumer": "done",
    "checker": RetryableError,
    "locks": RetryableError,
    "guard": RetryableError,
    "inbox": RetryableError,
}
ASYNC_ENDINGS = {name: ENDINGS[name] for name in ("OPEN", "CLOSED", "guard", "inbox")}


def open_parts(open_source: Callable[[], Any], stack: ExitStack) -> dict[str, Callable[[], object]]:
    """Return a call of each part, each with a source of its own."""

    def open_store() -> PostgresStore:
        return stack.enter_context(closing(PostgresStore(open_source(), timeout=SHORT)))

    breaker = CircuitBreaker("store", failures=1, rest=timedelta(minutes=1))
    consumer = IdempotentConsumer(
        open_store(), lambda _: "done", NoMetrics(), fail_mode=FailMode.OPEN, name=uuid.uuid4().hex
    )
    checker = IdempotencyChecker(open_store())
    locks = stack.enter_context(closing(PostgresLocks(open_source(), timeout=SHORT)))
    settings = GuardSettings(lock_wait=SHORT)
    guard = stack.enter_context(closing(TransactionGuard(open_source(), settings, timeout=SHORT)))
    inbox = stack.enter_context(closing(InboxGuard(open_source(), name="inbox", timeout=SHORT, lock_wait=SHORT)))
    return {
        "OPEN": guarded(open_store(), FailMode.OPEN),
        "CLOSED": guarded(open_store(), FailMode.CLOSED),
        "breaker": guarded(BreakerStore(open_store(), breaker), FailMode.CLOSED),
        "consumer": lambda: consumer.process(Message(uuid.uuid4().hex)).value,
        "checker": lambda: checker.is_processed("m-1"),
        "locks": lambda: locks.acquire(uuid.uuid4().hex, timedelta(minutes=1)),
        "guard": lambda: guard.run(request(), respond),
        "inbox": lambda: inbox.run(Message(uuid.uuid4().hex), lambda _: None),
    }


async def open_async_parts(
    open_source: Callable[[], Awaitable[Any]], stack: AsyncExitStack
) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the same of the asynchronous parts."""
    stores = [AsyncPostgresStore(await open_source(), timeout=SHORT) for _ in range(2)]
    guard = AsyncTransactionGuard(await open_source(), GuardSettings(lock_wait=SHORT), timeout=SHORT)
    inbox = AsyncInboxGuard(await open_source(), name="inbox", timeout=SHORT, lock_wait=SHORT)
    parts: list[Any] = [*stores, guard, inbox]
    for part in parts:
        stack.push_async_callback(part.close)
    return {
        "OPEN": guarded_async(stores[0], FailMode.OPEN),
        "CLOSED": guarded_async(stores[1], FailMode.CLOSED),
        "guard": lambda: guard.run(request(), respond_async),
        "inbox": lambda: inbox.run(Message(uuid.uuid4().hex), nothing_async),
    }


async def respond_async(tx: Any) -> StoredResponse:
    """Return a response."""
    return respond(tx)


async def nothing_async(_tx: Any) -> None:
    """Do nothing."""


def attempt(call: Callable[[], object]) -> object:
    """Return the result of the call, or the type of its error of the library."""
    try:
        return call()
    except RetryableError:
        return RetryableError


@pytest.mark.parametrize("kind", ["dsn", "connection", "pool"])
@newest_postgres
def test_backend_that_does_not_respond_ends_in_the_fail_mode(kind: str, server: Server) -> None:
    """C26: each part with a connection of its own; nothing waits for longer than its limit, and then it recovers."""
    with ExitStack() as stack:

        def source() -> Any:
            if kind == "connection":
                return stack.enter_context(psycopg.connect(server.url, autocommit=True))
            if kind == "pool":
                return stack.enter_context(ConnectionPool(server.url, min_size=1, max_size=1, timeout=0.5))
            return server.url

        calls = open_parts(source, stack)
        for call in calls.values():
            call()
        with server.silent(), ThreadPoolExecutor(len(calls)) as threads:
            endings = dict(zip(calls, threads.map(attempt, calls.values()), strict=True))
            assert endings == ENDINGS
            with pytest.raises(CircuitOpenError):
                calls["breaker"]()
        if kind != "connection":  # the library cannot open one of the user again
            assert wait_until(lambda: attempt(calls["CLOSED"]) == "done", 30)


@pytest.mark.parametrize("kind", ["dsn", "connection", "pool"])
@newest_postgres
def test_asynchronous_parts_end_in_the_fail_mode(kind: str, server: Server) -> None:
    """C26, C22: as the others."""

    async def attempt_async(call: Callable[[], Any]) -> object:
        try:
            return await call()
        except RetryableError:
            return RetryableError

    async def main() -> None:
        async with AsyncExitStack() as stack:

            async def source() -> Any:
                if kind == "connection":
                    connection = await psycopg.AsyncConnection.connect(server.url, autocommit=True)
                    return await stack.enter_async_context(connection)
                if kind == "pool":
                    pool = AsyncConnectionPool(server.url, min_size=1, max_size=1, timeout=0.5, open=False)
                    return await stack.enter_async_context(pool)
                return server.url

            calls = await open_async_parts(source, stack)
            for call in calls.values():
                await call()
            with server.silent():
                endings = await asyncio.gather(*map(attempt_async, calls.values()))
            assert dict(zip(calls, endings, strict=True)) == ASYNC_ENDINGS

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["autocommit", "transactions"])
@newest_postgres
def test_limit_leaves_a_connection_of_the_user_as_it_was(kind: str, database_url: str) -> None:
    """C26: a statement that waits for a lock is ended by the server; the session and its settings are unchanged."""
    key = Key(uuid.uuid4().hex)
    with (
        psycopg.connect(database_url) as holder,
        psycopg.connect(database_url, autocommit=kind == "autocommit") as connection,
    ):
        store = PostgresStore(connection, timeout=SHORT)
        claim = store.check(key, timedelta(minutes=1))
        assert isinstance(claim, Claim)
        pid = connection.info.backend_pid
        holder.execute("SELECT FROM processed_messages FOR UPDATE")
        with pytest.raises(RetryableError):
            store.store_result(claim, "late", timedelta(minutes=1))
        holder.rollback()
        store.store_result(claim, "done", timedelta(minutes=1))
        assert store.check(key, timedelta(minutes=1)) == Duplicate(key, "done")
        assert connection.info.backend_pid == pid
        # A statement of the user has no limit, and the server's settings are those of before.
        row = connection.execute("SELECT pg_sleep(0.5), current_setting('statement_timeout')").fetchone()
        assert row is not None
        assert row[1] == "0"


@newest_postgres
def test_cancelled_task_does_not_wait_for_a_stopped_backend(database_url: str) -> None:
    """C26, C24: psycopg reads the response after a cancellation; that wait has the same limit, and the task ends so."""

    async def main() -> None:
        store = AsyncPostgresStore(database_url, timeout=SHORT)
        await store.get_result(Key("k"))
        with stopped_backends(database_url):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.get_result(Key("k")), SHORT.total_seconds() / 2)
            assert await store.get_result(Key("k")) is None
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["dsn", "connection"])
@newest_postgres
def test_tasks_on_one_connection_do_not_wait_one_after_the_other(kind: str, server: Server) -> None:
    """C26: those that wait for their turn share the error of the one that got no response."""

    async def find_cause(store: AsyncPostgresStore) -> str:
        with pytest.raises(RetryableError) as caught:
            await store.get_result(Key("k"))
        return str(caught.value.__cause__)

    async def main() -> None:
        source = server.url if kind == "dsn" else await psycopg.AsyncConnection.connect(server.url)
        store = AsyncPostgresStore(source, timeout=SHORT)
        await store.get_result(Key("k"))
        with server.silent():
            causes = await asyncio.gather(*(find_cause(store) for _ in range(5)))
        assert [cause.endswith("before this one") for cause in causes] == [False, True, True, True, True]
        await store.close()
        if not isinstance(source, str):
            await source.close()

    asyncio.run(main())


@newest_postgres
def test_sessions_of_a_dsn_have_limits_in_the_server(database_url: str) -> None:
    """C26: the server ends a statement of which the client is gone, and a transaction that is left open."""
    settings = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"

    def read(source: Any) -> tuple[str, str]:
        rows: list[Any] = []
        with closing(InboxGuard(source, name="inbox", timeout=SHORT)) as guard:
            guard.run(Message(uuid.uuid4().hex), lambda tx: rows.extend(tx.execute(settings).fetchall()))
        return rows[0]  # type: ignore[no-any-return]

    def read_of_dsn(option: str, name: str) -> str:
        runner = statement_runner(f"{database_url}?options=-c%20{option}", "test", timeout=SHORT)
        with closing(runner):  # type: ignore[type-var]
            row = runner.fetch_row("SELECT current_setting(%(name)s)", {"name": name})
        return str(row[0])

    assert read(database_url) == ("0", "15min")
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert read(connection) == ("0", "0")
    assert read_of_dsn("lock_timeout%3D3s", "statement_timeout") == "200ms"
    assert read_of_dsn("statement_timeout%3D7s", "statement_timeout") == "7s"
    assert read_of_dsn("lock_timeout%3D3s", "lock_timeout") == "3s"


@newest_postgres
def test_commit_without_a_response_is_ambiguous(database_url: str) -> None:
    """C26: the server stops in the middle of the work; the outcome is unknown, and a repeat is safe."""
    settings = GuardSettings(lock_wait=SHORT)
    stopped = ExitStack()
    with closing(TransactionGuard(database_url, settings, timeout=SHORT)) as guard, stopped:

        def stop(_tx: Any) -> StoredResponse:
            stopped.enter_context(stopped_backends(database_url))
            return StoredResponse(200, "")

        with pytest.raises(AmbiguousError) as caught:
            guard.run(request(), stop)
        assert isinstance(caught.value.__cause__, NoResponseError)
        stopped.close()
        assert guard.run(request(), respond) == StoredResponse(200, "")


@newest_postgres
def test_work_of_a_guard_may_take_longer(database_url: str) -> None:
    """C26: the deadline is for the statements of the library alone."""
    guard = InboxGuard(database_url, name="inbox", timeout=SHORT, lock_wait=SHORT)

    def wait(tx: psycopg.Connection[Any]) -> int:
        tx.execute("SELECT pg_sleep(0.6)")
        return 5

    message = Message(uuid.uuid4().hex)
    assert guard.run(message, wait) == Outcome(5)
    assert guard.run(message, wait) == Outcome(5, replayed=True)
    guard.close()
