"""C23: a shortage of connections on the caller's side is busy, never unavailable: no work runs unguarded."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from grantwire_idempotency import (
    AsyncPostgresStore,
    AsyncTransactionGuard,
    Claim,
    FailMode,
    InboxGuard,
    InProgress,
    Key,
    Message,
    NoMetrics,
    PostgresLocks,
    PostgresStore,
    RedisStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    connect_redis,
    idempotent,
)
from grantwire_idempotency._internal.postgres.errors import is_busy
from grantwire_idempotency.errors import BusyError, InternalError
from infra.local.system.processes import wait_until
from tests.support.module_database import database_url
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store
    from tests.support.valkey import ValkeyServer

__all__ = ["database_url"]


def request() -> RequestIdentity:
    """Return a request with a new key."""
    return RequestIdentity.create("shop", "POST /orders", uuid.uuid4().hex, {})


def call_busy_job(url: str, callers: str, client: str, packages: str = "") -> dict[str, Any]:
    """Run the program with many callers, with another redis-py from a folder if there is one."""
    process = subprocess.run(
        [sys.executable, "-m", "layers.idempotency.tests.support.busy_redis", url, callers, client],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, (packages, PYTHONPATH)))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


@pytest.mark.parametrize("client", ["plain", "connect"])
@pytest.mark.parametrize(("callers", "keys"), [("tasks", 200), ("threads", 150)])
def test_each_key_runs_once_with_more_callers_than_connections(
    callers: str, keys: int, client: str, valkey_server: ValkeyServer
) -> None:
    """C23: 400 tasks and 300 threads, in OPEN, with the client of the library and with one of the user."""
    report = call_busy_job(valkey_server.url, callers, client)
    assert report["runs"] == {str(number): 1 for number in range(keys)}
    assert report["errors"].keys() <= {"", "RequestInProgressError"}


def test_client_of_the_library_waits_for_a_connection(valkey_server: ValkeyServer) -> None:
    """C23: for the time of its pool, which the URL may set; then the store is busy."""
    with connect_redis(f"{valkey_server.url}?timeout=0.05", max_connections=1) as client:
        held = client.connection_pool.get_connection()
        with pytest.raises(BusyError):
            RedisStore(client).check(Key("k"), timedelta(minutes=1))
        with ThreadPoolExecutor(1) as thread:
            client.connection_pool.timeout = 60
            check = thread.submit(RedisStore(client).check, Key("k"), timedelta(minutes=1))
            client.connection_pool.release(held)
            assert isinstance(check.result(60), Claim | InProgress)


@contextmanager
def no_free_file() -> Iterator[None]:
    """Let this process have too many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno(), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_job(store: Store, runs: list[str]) -> Callable[[str], None]:
    """Return a job that would run without its store."""

    @idempotent(store, key=str, name=uuid.uuid4().hex, fail_mode=FailMode.OPEN, metrics=NoMetrics())
    def job(order: str) -> None:
        runs.append(order)

    return job


@pytest.fixture
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call wait for a free connection for a moment only."""
    monkeypatch.setattr("grantwire_idempotency._internal.jobs.key_checks.BUSY_WAIT", timedelta(milliseconds=50))


@pytest.mark.usefixtures("_short_wait")
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_too_many_open_files_are_busy(kind: str) -> None:
    """C23: nothing listens at these addresses, but that is not known without a socket."""
    runs: list[str] = []
    store = (
        RedisStore(connect_redis("redis://127.0.0.1:1")) if kind == "redis" else PostgresStore("host=127.0.0.1 port=1")
    )
    job = open_job(store, runs)
    with no_free_file(), pytest.raises(BusyError):
        job("o1")
    assert runs == []
    job("o1")
    assert runs == ["o1"]


@pytest.mark.usefixtures("_short_wait")
@newest_postgres
@pytest.mark.parametrize("limits", [{"timeout": 0.2}, {"timeout": 30, "max_waiting": 1}], ids=["timeout", "waiting"])
def test_exhausted_pool_of_psycopg_is_busy(limits: dict[str, Any], database_url: str) -> None:
    """C23: store, guards and locks; nothing runs. When a connection is free again, the work runs once."""
    runs: list[str] = []
    with ConnectionPool(database_url, min_size=1, max_size=1, **limits) as pool:
        job = open_job(PostgresStore(pool), runs)
        calls: list[Callable[[], object]] = [
            lambda: job("o1"),
            lambda: TransactionGuard(pool).run(request(), lambda _: StoredResponse(200, "")),
            lambda: InboxGuard(pool, name="inbox").run(Message("m1"), lambda _: None),
            lambda: PostgresLocks(pool).acquire("job", timedelta(minutes=1)),
        ]
        with pool.connection(), waiting_caller(pool, at_most=limits.get("max_waiting", 0)):
            for call in calls:
                with pytest.raises(BusyError):
                    call()
        assert runs == []
        for _ in range(2):
            job("o1")
    assert runs == ["o1"]


@contextmanager
def waiting_caller(pool: ConnectionPool, at_most: int) -> Iterator[None]:
    """Let as many callers wait as the pool allows."""

    def wait() -> None:
        with pool.connection():
            pass

    executor = ThreadPoolExecutor(max(1, at_most))
    for _ in range(at_most):
        executor.submit(wait)
    assert wait_until(lambda: pool.get_stats().get("requests_waiting", 0) >= at_most, 30)
    yield
    executor.shutdown(wait=False)


@pytest.mark.usefixtures("_short_wait")
@newest_postgres
def test_exhausted_asynchronous_pool_is_busy(database_url: str) -> None:
    """C23, C22: store and guard."""
    runs: list[str] = []

    async def main() -> None:
        async with AsyncConnectionPool(database_url, min_size=1, max_size=1, timeout=0.2, open=False) as pool:
            store = AsyncPostgresStore(pool)

            @idempotent(store, key=str, name=uuid.uuid4().hex, fail_mode=FailMode.OPEN, metrics=NoMetrics())
            async def job(order: str) -> None:
                runs.append(order)

            async def respond(_tx: Any) -> StoredResponse:
                return StoredResponse(200, "")

            async with pool.connection(timeout=60):
                with pytest.raises(BusyError):
                    await job("o2")
                with pytest.raises(BusyError):
                    await AsyncTransactionGuard(pool).run(request(), respond)
            assert runs == []
            await job("o2")

    asyncio.run(main())
    assert runs == ["o2"]


def test_pool_without_a_server_is_unavailable() -> None:
    """C23, C6: psycopg_pool raises the same error, but OPEN runs the work."""
    runs: list[str] = []
    with ConnectionPool("host=127.0.0.1 port=1", min_size=1, max_size=1, timeout=0.2) as pool:
        open_job(PostgresStore(pool), runs)("o1")
    assert runs == ["o1"]

    async def main() -> None:
        async with AsyncConnectionPool("host=127.0.0.1 port=1", min_size=1, timeout=0.2, open=False) as pool:

            @idempotent(
                AsyncPostgresStore(pool), key=str, name=uuid.uuid4().hex, fail_mode=FailMode.OPEN, metrics=NoMetrics()
            )
            async def job(order: str) -> None:
                runs.append(order)

            await job("o2")

    asyncio.run(main())
    assert runs == ["o1", "o2"]


def test_closed_pool_is_a_mistake() -> None:
    """C23: no work runs without its key, although the mode is OPEN, and the error names the reason."""
    runs: list[str] = []
    with pytest.raises(InternalError, match="the pool is not open"):
        open_job(PostgresStore(ConnectionPool("host=127.0.0.1 port=1", open=False)), runs)("o1")
    assert runs == []


@newest_postgres
def test_server_without_a_free_connection_is_busy(database_url: str, owner_url: str) -> None:
    """C23: PostgreSQL is healthy, and its other connections may work on the same key."""
    database = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {database} CONNECTION LIMIT 0")
        try:
            with pytest.raises(psycopg.OperationalError) as caught:
                psycopg.connect(database_url)
            assert is_busy(caught.value)
            with pytest.raises(BusyError):
                PostgresLocks(database_url).acquire("job", timedelta(minutes=1))
        finally:
            owner.execute(f"ALTER DATABASE {database} CONNECTION LIMIT -1")
