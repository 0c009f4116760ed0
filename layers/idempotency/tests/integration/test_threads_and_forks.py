"""C17: a store that many threads use, or that a fork carries along, never mixes responses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import traceback
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from redis import Redis

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import (
    AsyncPostgresStore,
    BloomFilter,
    CircuitBreaker,
    Claim,
    Duplicate,
    EmfMetrics,
    IdempotencyChecker,
    Key,
    LruFilter,
    MemoryStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
)
from grantwire_idempotency.errors import InternalError, RetryableError
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from grantwire_idempotency import AsyncStore, Store
    from tests.support.valkey import ValkeyServer

# `make check` sets it to 20,000.
CHECKS = int(os.environ.get("GRANTWIRE_THREAD_CHECKS", "2000"))
WORKERS = 8
# A request to the preloading server checks each of these keys twice.
KEYS_PER_REQUEST = 5
# Seconds without any progress until a process hangs: not for all of its checks, which take long on a busy machine.
TIME_LIMIT = 60
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
# The checks of a test end in any case. A busy machine takes a minute for what takes a second otherwise.
pytestmark = pytest.mark.timeout(max(300, CHECKS // 20))
# A busy machine may take longer than the defaults to start a session, and to run a statement.
SETTINGS = {**PLAINTEXT, "DATABASE_CONNECT_TIMEOUT": "10s", "DATABASE_STATEMENT_TIMEOUT": "60s"}


def patient(url: str) -> str:
    """Return the URL with a limit for connecting that a busy machine does not reach."""
    return psycopg.conninfo.make_conninfo(url, connect_timeout=TIME_LIMIT)


@pytest.fixture(params=["dsn", "pool", "connection", "Database", "redis"])
def store(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Store]:
    """Return a store of each kind of connection."""
    match request.param:
        case "dsn":
            with closing(PostgresStore(patient(database_url), timeout=MINUTE)) as store:
                yield store
        case "pool":
            with ConnectionPool(database_url, min_size=2, max_size=4, kwargs={"autocommit": True}) as pool:
                yield PostgresStore(pool, timeout=MINUTE)
        case "connection":
            with psycopg.connect(database_url) as connection:
                yield PostgresStore(connection, timeout=MINUTE)
        case "Database":
            with closing(Database(load(DatabaseSettings, {**SETTINGS, "DATABASE_URL": database_url}))) as database:
                yield PostgresStore(database)
        case "sqlite":
            with closing(SqliteStore(tmp_path / "keys.db", timeout=MINUTE)) as store:
                yield store
        case _:
            valkey: ValkeyServer = request.getfixturevalue("valkey_server")
            with Redis.from_url(valkey.url) as client:
                client.flushall()
                yield RedisStore(client)


class Watchdog:
    """Ends a forked process that makes no progress. In the process of the tests, pytest does that."""

    def __init__(self) -> None:
        self._process = 0

    def start(self) -> None:
        """Watch this process from now on."""
        self._process = os.getpid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self.report_progress()

    def report_progress(self) -> None:
        """Begin the time limit again."""
        if os.getpid() == self._process:
            signal.alarm(TIME_LIMIT)


WATCHDOG = Watchdog()


def process(store: Store, names: list[str]) -> Counter[str]:
    """Complete each key and check it again; count what the store says."""
    counts: Counter[str] = Counter()
    for name in names:
        WATCHDOG.report_progress()
        first = store.check(Key(name), MINUTE)
        counts[f"first {type(first).__name__}"] += 1
        if not isinstance(first, Claim):
            continue
        store.store_result(first, name, DAY)
        again = store.check(Key(name), MINUTE)
        right = isinstance(again, Duplicate) and again.result == name
        counts["again right" if right else f"again {again}"] += 1
    return counts


async def process_async(store: AsyncStore, names: list[str]) -> Counter[str]:
    """Do the same with an asynchronous store."""
    counts: Counter[str] = Counter()
    for name in names:
        WATCHDOG.report_progress()
        first = await store.check(Key(name), MINUTE)
        counts[f"first {type(first).__name__}"] += 1
        if isinstance(first, Claim):
            await store.store_result(first, name, DAY)
        again = await store.check(Key(name), MINUTE)
        counts["again right" if again == Duplicate(Key(name), name) else f"again {again}"] += 1
    return counts


def expected(names: int) -> Counter[str]:
    """Return the counts if each key is new once and its own duplicate afterwards."""
    return Counter({"first Claim": names, "again right": names})


def names_of(worker: int, workers: int = WORKERS) -> list[str]:
    """Return the keys of a worker: half as many as checks, because each key is checked twice."""
    return [f"{worker}-{number}" for number in range(CHECKS // 2 // workers)]


@pytest.mark.parametrize("store", ["dsn", "pool", "connection", "Database", "redis", "sqlite"], indirect=True)
@newest_postgres
def test_threads_get_their_own_responses(store: Store) -> None:
    """C17: with one connection for all of them, or with a pool."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def work(worker: int) -> None:
        result = process(store, names_of(worker))
        with lock:
            counts.update(result)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == expected(WORKERS * len(names_of(0)))


@newest_postgres
def test_tasks_get_their_own_responses(store: Store) -> None:
    """C17: `asyncio.to_thread` runs the calls of many tasks in a pool of threads."""

    async def run() -> list[Counter[str]]:
        return await asyncio.gather(*(asyncio.to_thread(process, store, names_of(worker)) for worker in range(WORKERS)))

    assert sum(asyncio.run(run()), Counter()) == expected(WORKERS * len(names_of(0)))


@newest_postgres
def test_event_loops_of_threads_get_their_own_responses(database_url: str) -> None:
    """C17, C22: each loop has a connection, so no thread reads the responses of another one."""
    store = AsyncPostgresStore(patient(database_url), timeout=MINUTE)

    async def use(worker: int) -> Counter[str]:
        try:
            return await process_async(store, names_of(worker))
        finally:
            await store.close()

    with ThreadPoolExecutor(WORKERS) as pool:
        counts = sum(pool.map(lambda worker: asyncio.run(use(worker)), range(WORKERS)), Counter())
    assert counts == expected(WORKERS * len(names_of(0)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@newest_postgres
def test_asynchronous_store_of_forked_processes_gets_its_own_responses(database_url: str) -> None:
    """C17, C22: the store has a connection before the fork, and the parent goes on with it."""
    store = AsyncPostgresStore(patient(database_url), timeout=MINUTE)
    parent: list[Counter[str]] = []
    is_used = threading.Event()

    async def use_in_parent() -> None:
        await process_async(store, ["before"])
        is_used.set()
        parent.append(await process_async(store, names_of(9, 5)))
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(use_in_parent()), daemon=True)
    thread.start()
    assert is_used.wait(TIME_LIMIT)
    reports = run_forked(lambda number: asyncio.run(process_async(store, names_of(number, 5))), 4)
    thread.join()
    assert [Counter(report) for report in (*reports, *parent)] == [expected(len(names_of(0, 5)))] * 5


def run_forked(work: Callable[[int], Any], children: int) -> list[Any]:
    """Run the work in forked processes, all at the same time, and return what each of them returned.

    A child that hangs is ended by its watchdog, and its report is empty.
    """
    pipes = []
    for number in range(children):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            WATCHDOG.start()
            try:
                report = work(number)
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                report = {f"{type(error).__name__}: {error}": 1, "trace": traceback.format_exc()}
            os.write(writer, json.dumps(report).encode())
            os._exit(0)
        os.close(writer)
        pipes.append((child, reader))
    reports = []
    for child, reader in pipes:
        with os.fdopen(reader) as pipe:
            reports.append(json.loads(pipe.read() or '{"no report": 1}'))
        os.waitpid(child, 0)
    return reports


@pytest.mark.parametrize(
    ("store", "used_before"),
    [*((store, used) for store in ("dsn", "Database", "redis") for used in (True, False)), ("sqlite", True)],
    indirect=["store"],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@newest_postgres
def test_forked_processes_get_their_own_responses(store: Store, used_before: bool) -> None:
    """C17: also while the parent goes on, as in a server that loads the application before it forks."""
    if used_before:
        process(store, ["before"])
    parent: list[Counter[str]] = []
    thread = threading.Thread(target=lambda: parent.append(process(store, names_of(9, 5))), daemon=True)
    if used_before:
        thread.start()
    reports = run_forked(lambda number: process(store, names_of(number, 5)), 4)
    if not used_before:
        thread.start()
    thread.join()
    assert [Counter(report) for report in (*reports, *parent)] == [expected(len(names_of(0, 5)))] * 5
    assert process(store, ["after"]) == expected(1)


@pytest.mark.parametrize("store", ["dsn", "redis"], indirect=True)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@newest_postgres
def test_preloading_server_gets_its_own_responses(store: Store) -> None:
    """C17: a server that loads the application, uses its store, and forks workers that accept on one socket."""
    process(store, ["at start-up"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            counts = process(store, [f"{self.path}-{number}" for number in range(KEYS_PER_REQUEST)])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({**counts, "pid": os.getpid()}).encode())

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    workers = [_fork_worker(server) for _ in range(4)]

    def request(number: int) -> dict[str, int]:
        url = f"http://127.0.0.1:{server.server_port}/{number}"
        with urllib.request.urlopen(url, timeout=TIME_LIMIT) as response:
            return dict(json.load(response))

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            reports = list(pool.map(request, range(CHECKS // 2 // KEYS_PER_REQUEST)))
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
        server.server_close()
    served = Counter(report.pop("pid") for report in reports)
    assert [Counter(report) for report in reports] == [expected(KEYS_PER_REQUEST)] * len(reports)
    assert sum(report["first Claim"] + report["again right"] for report in reports) == CHECKS
    assert len(served) > 1
    assert set(served) <= set(workers)


def _fork_worker(server: HTTPServer) -> int:
    """Fork a worker that serves until it is ended, or until it makes no progress, and return its process id."""
    child = os.fork()
    if child == 0:
        WATCHDOG.start()
        try:
            server.serve_forever()
        finally:
            os._exit(1)
    return child


@pytest.mark.parametrize("store", ["pool", "connection"], indirect=True)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@newest_postgres
def test_connection_of_another_process_is_refused(store: Store) -> None:
    """C17: the library cannot open the user's connection again; the error says what to do."""
    process(store, ["before"])

    def work(_: int) -> str:
        try:
            store.check(Key("child"), MINUTE)
        except InternalError as error:
            return str(error)
        return "used"

    (report,) = run_forked(work, 1)
    assert "was opened by another process" in report
    assert process(store, ["after"]) == expected(1)


class SlowText(str):
    """A text that keeps the thread of the parent inside the part that uses it, which holds its lock meanwhile."""

    __slots__ = ("is_inside", "may_leave", "parent")
    __eq__ = str.__eq__

    def __init__(self, _text: str) -> None:
        self.parent = os.getpid()
        self.is_inside = threading.Event()
        self.may_leave = threading.Event()

    def __hash__(self) -> int:
        """Wait, except in a child and in the main thread."""
        if os.getpid() == self.parent and threading.current_thread() is not threading.main_thread():
            self.is_inside.set()
            self.may_leave.wait(2 * TIME_LIMIT)
        return str.__hash__(self)


def use_memory_store(store: MemoryStore, name: str) -> None:
    """Claim a key."""
    store.check(Key(name), MINUTE)


def use_checker(checker: IdempotencyChecker, name: str) -> None:
    """Claim a key; the store has no lock of its own."""
    checker.mark_processing(name, MINUTE)


def use_bloom_filter(bloom_filter: BloomFilter, name: str) -> None:
    """Look for a key: rbloom refuses to add one while it is inside the hash function of another one."""
    bloom_filter.may_contain(name)


class AlwaysNew(MemoryStore):
    """A store that claims every key, without a lock."""

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> Claim:  # noqa: ARG002 - the interface
        """Claim the key."""
        return Claim(key, token or "token")


PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any, str], None]]] = {
    "MemoryStore": (MemoryStore, use_memory_store),
    "LruFilter": (lambda: LruFilter(10), LruFilter.add),
    "BloomFilter": (lambda: BloomFilter(10), use_bloom_filter),
    "IdempotencyChecker": (lambda: IdempotencyChecker(AlwaysNew()), use_checker),
    "EmfMetrics": (lambda: EmfMetrics(write=len), lambda metrics, name: metrics.record_unguarded_run(name)),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_part_is_usable_after_fork_while_a_thread_uses_it(part: str) -> None:
    """C17: a lock that another thread held at the fork does not block the child for ever."""
    create, use = PARTS[part]
    shared = create()
    slow = SlowText("slow")
    thread = threading.Thread(target=use, args=(shared, slow), daemon=True)
    thread.start()
    assert slow.is_inside.wait(TIME_LIMIT)
    try:
        reports = run_forked(lambda number: use(shared, f"child-{number}"), 2)
    finally:
        slow.may_leave.set()
        thread.join(TIME_LIMIT)
    assert reports == [None, None]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_breaker_and_metrics_are_usable_after_fork_while_a_thread_uses_them() -> None:
    """C17: the breaker reads its clock under its lock, and metrics are written under one lock for all."""
    parent, is_inside, may_leave = os.getpid(), threading.Semaphore(0), threading.Event()

    def wait_in_parent(*_: object) -> float:
        """Keep the threads of the parent inside."""
        if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
            is_inside.release()
            may_leave.wait(2 * TIME_LIMIT)
        return 0.0

    breaker = CircuitBreaker("server", failures=1, rest=MINUTE, clock=wait_in_parent)
    with suppress(RetryableError), breaker.guard():
        raise RetryableError("down")
    metrics = EmfMetrics(write=wait_in_parent)

    def write_metrics(_: int = 0) -> None:
        metrics.record_unguarded_run("job")
        metrics.flush()

    threads = [threading.Thread(target=work, daemon=True) for work in (breaker.open_for, write_metrics)]
    for thread in threads:
        thread.start()
        assert is_inside.acquire(timeout=TIME_LIMIT)
    try:
        reports = [*run_forked(lambda _: breaker.open_for(), 2), *run_forked(write_metrics, 2)]
    finally:
        may_leave.set()
        for thread in threads:
            thread.join(TIME_LIMIT)
    assert reports == [60.0, 60.0, None, None]
