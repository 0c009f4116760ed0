"""C7: what every lock promises (`locks/interface.py`), asked of each kind; and two processes with one lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from psycopg.rows import dict_row

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency.errors import BadRequestError, ConfigError, LeaseLostError, LockHeldError, RetryableError
from grantwire_idempotency.locks.postgres import PostgresLocks
from grantwire_idempotency.locks.redis import RedisLocks
from grantwire_idempotency.stores.redis import connect
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.plaintext import PLAINTEXT
from tests.unit.idempotency.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from grantwire_idempotency.locks.interface import Lock, LockManager
    from infra.local.servers.postgres import PostgresServer
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Scene(Protocol):
    """One kind of lock on a server, and its time."""

    kind: str
    url: str

    def locks(self, **waiting: Any) -> LockManager:
        """Another user of the locks, with a connection of its own."""

    def advance(self, step: timedelta) -> None:
        """Let time pass."""


class PostgresScene:
    """Rows, and a clock that is ahead of the database's by what the test says."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._ahead = timedelta(0)
        self._opened = ExitStack()
        self.rows = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def locks(self, **waiting: Any) -> LockManager:
        """With a connection of its own."""
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": self.url}), application_name="locks")
        self._opened.callback(database.close)
        return PostgresLocks(database, clock=lambda: datetime.now(UTC) + self._ahead, **waiting)

    def advance(self, step: timedelta) -> None:
        """Turn the clock."""
        self._ahead += step

    def reset(self) -> None:
        """Forget all locks, and who used them."""
        self._opened.close()
        self._ahead = timedelta(0)
        self.rows.execute("DELETE FROM distributed_locks")

    def close(self) -> None:
        """Close every connection."""
        self._opened.close()
        self.rows.close()


class RedisScene:
    """Keys, whose time to live is shortened by what the test says."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened = ExitStack()
        self.client = connect(url)

    def locks(self, **waiting: Any) -> LockManager:
        """With connections of its own."""
        return RedisLocks(self._opened.enter_context(connect(self.url)), **waiting)

    def advance(self, step: timedelta) -> None:
        """Let every key end sooner."""
        for name in self.client.scan_iter("lock:*"):
            left = self.client.pttl(name) - step // timedelta(milliseconds=1)
            assert self.client.pexpire(name, max(0, left))

    def reset(self) -> None:
        """Forget all locks, and who used them."""
        self._opened.close()
        self.client.flushall()

    def close(self) -> None:
        """Close every connection."""
        self._opened.close()
        self.client.close()


@pytest.fixture(scope="module")
def open_database(databases: Databases) -> Iterator[PostgresScene]:
    """A database that all tests of this file share."""
    url = databases.migrated()
    scene = PostgresScene(url)
    yield scene
    scene.close()
    databases.drop(url)


@pytest.fixture(scope="module")
def open_valkey(valkey_server: ValkeyServer) -> Iterator[RedisScene]:
    """Connections that all tests of this file share."""
    scene = RedisScene(valkey_server.url)
    yield scene
    scene.close()


def is_held(locks: LockManager, key: str = "job") -> bool:
    """Whether nobody else can have it."""
    try:
        locks.acquire(key, MINUTE).release()
    except LockHeldError:
        return True
    return False


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process that uses locks."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.lock_worker", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Conformance:
    """The suite; each subclass has a scene of its own."""

    @pytest.fixture
    def locks(self, scene: Scene) -> LockManager:
        """A user of the locks."""
        return scene.locks()

    @pytest.fixture
    def others(self, scene: Scene) -> LockManager:
        """Another one."""
        return scene.locks()

    def test_a_lock_has_one_owner_until_it_is_released(self, locks: LockManager, others: LockManager) -> None:
        """C7: whoever comes meanwhile is told to try later; other keys are other locks."""
        lock = locks.acquire("job", MINUTE)
        with pytest.raises(LockHeldError, match="another owner holds the lock") as caught:
            others.acquire("job", MINUTE)
        assert isinstance(caught.value, RetryableError)
        assert not is_held(others, "another job")
        lock.release()
        assert others.acquire("job", MINUTE).token != lock.token

    def test_it_is_not_reentrant(self, locks: LockManager) -> None:
        """Its holder waits like everybody else: two parts of one program are two users."""
        with locks.acquire("job", MINUTE):
            assert is_held(locks)

    def test_with_releases_whatever_happens(self, locks: LockManager, others: LockManager) -> None:
        """C7: at the end, and after an error, which is passed on."""
        with locks.acquire("job", MINUTE) as lock:
            assert lock.key == "job"
            assert is_held(others)
        assert not is_held(others)
        with pytest.raises(ZeroDivisionError), locks.acquire("job", MINUTE):
            _ = 1 / 0
        assert not is_held(others)

    def test_only_the_owner_may_release_or_extend(self, scene: Scene, locks: LockManager, others: LockManager) -> None:
        """C7: one whose time was up and whose lock is another's now changes nothing, and is told."""
        late = locks.acquire("job", MINUTE)
        scene.advance(MINUTE + MINUTE)
        current = others.acquire("job", HOUR)
        with pytest.raises(LeaseLostError, match="before it could be extended"):
            late.extend(HOUR)
        with pytest.raises(LeaseLostError, match="before it was released"):
            late.release()
        assert is_held(locks)
        current.extend(HOUR)
        current.release()
        assert not is_held(locks)

    def test_releasing_twice_changes_nothing(self, locks: LockManager, others: LockManager) -> None:
        """Not even if somebody else has it by then; and what was released cannot be extended."""
        lock = locks.acquire("job", MINUTE)
        lock.release()
        other = others.acquire("job", MINUTE)
        lock.release()
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        assert is_held(locks)
        other.release()

    def test_extending_keeps_it(self, scene: Scene, locks: LockManager, others: LockManager) -> None:
        """C7: for that time from now on, which may also be less."""
        lock = locks.acquire("job", 10 * MINUTE)
        for _ in range(3):
            scene.advance(8 * MINUTE)
            lock.extend(10 * MINUTE)
        assert is_held(others)
        lock.extend(MINUTE)
        scene.advance(2 * MINUTE)
        assert not is_held(others)

    def test_what_has_ended_cannot_be_extended(self, scene: Scene, locks: LockManager, others: LockManager) -> None:
        """C7: even if nobody has taken it yet: somebody may have had it."""
        lock = locks.acquire("job", MINUTE)
        scene.advance(2 * MINUTE)
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        with pytest.raises(LeaseLostError):
            lock.release()
        assert not is_held(others)

    def test_a_lock_lost_during_the_work_is_told_at_its_end(
        self, scene: Scene, locks: LockManager, others: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C7: the work was not alone, unless it failed anyway, which is what the caller gets to see."""

        def outlive(result: float) -> float:
            scene.advance(2 * MINUTE)
            others.acquire("job", HOUR)
            return 1 / result

        with pytest.raises(LeaseLostError), locks.acquire("job", MINUTE):
            outlive(1)
        scene.advance(2 * HOUR)
        caplog.clear()
        with pytest.raises(ZeroDivisionError), locks.acquire("job", MINUTE):
            outlive(0)
        (line,) = logged(caplog, "WARNING", "ERROR")
        assert (line["level"], line["message"], line["lock_key"]) == ("ERROR", "lock lost", "job")

    def test_of_many_at_once_one_gets_it(self, scene: Scene) -> None:
        """C7: real connections: a lock that nobody had, and one that was left behind."""
        users = [scene.locks() for _ in range(8)]

        def take(number: int) -> Lock | None:
            try:
                return users[number].acquire("job", MINUTE)
            except LockHeldError:
                return None

        for _ in range(5):
            got = [lock for lock in at_once(8, take) if lock is not None]
            assert len(got) == 1
            scene.advance(2 * MINUTE)
        got = [lock for lock in at_once(8, take) if lock is not None]
        got[0].release()
        assert len(got) == 1

    def test_who_waits_looks_again_until_it_is_free(self, scene: Scene, others: LockManager) -> None:
        """C7: after pauses that grow; and no longer than it said."""
        now = 0.0
        pauses: list[float] = []
        held = others.acquire("job", HOUR)

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            pauses.append(seconds)
            if now > 100:
                held.release()

        locks = scene.locks(sleep=sleep, monotonic=lambda: now)
        with pytest.raises(LockHeldError):
            locks.acquire("job", MINUTE)
        assert pauses == []
        with pytest.raises(LockHeldError):
            locks.acquire("job", MINUTE, wait=timedelta(seconds=10))
        assert sum(pauses) == now == pytest.approx(10)
        assert pauses[:3] == [0.05, 0.1, 0.2]
        assert max(pauses) == 1
        locks.acquire("job", MINUTE, wait=timedelta(minutes=5)).release()
        assert 100 < now < 102

    def test_a_key_that_no_server_could_hold_is_refused(self, locks: LockManager) -> None:
        """Whichever server it is."""
        bad: list[Any] = ["", " ", "x" * 257, "a\x00b", "a\nb", "\ud800", None, 7]
        for key in bad:
            with pytest.raises(BadRequestError, match="lock key"):
                locks.acquire(key, MINUTE)

    def test_any_other_text_is_a_key(self, locks: LockManager, others: LockManager) -> None:
        """Also of more bytes than characters."""
        for key in ("x" * 256, "münze:{1}/%s\\'\"", "\N{GRINNING FACE} " * 20):
            with locks.acquire(key, MINUTE):
                assert is_held(others, key)

    def test_a_lock_without_an_end_is_refused(self, locks: LockManager, others: LockManager) -> None:
        """Nobody could ever have it again; nothing is held."""
        bad: list[Any] = [timedelta(0), timedelta(seconds=-1), None, 60]
        for ttl in bad:
            with pytest.raises(ConfigError, match="ttl must be a positive timedelta"):
                locks.acquire("job", ttl)
            lock = others.acquire("job", MINUTE)
            with pytest.raises(ConfigError):
                lock.extend(ttl)
            lock.release()

    def test_the_longest_and_the_shortest_time_are_times(self, locks: LockManager, others: LockManager) -> None:
        """`timedelta.max` is more than any server can count, a microsecond less; the one ends, the other does not."""
        with locks.acquire("job", timedelta.max) as lock:
            lock.extend(timedelta.max)
            assert is_held(others)
        locks.acquire("job", timedelta(microseconds=1))
        others.acquire("job", MINUTE, wait=MINUTE).release()

    def test_a_request_that_is_sent_twice_gets_the_lock(self, locks: LockManager, others: LockManager) -> None:
        """Its first answer was lost: it is known by its token, and nobody else's is taken for it."""
        first, again = (locks._try_acquire("job", "token", MINUTE) for _ in range(2))  # noqa: SLF001 - as a client does
        assert first is not None
        assert again is not None
        assert others._try_acquire("job", "another", MINUTE) is None  # noqa: SLF001
        assert again.extend(MINUTE)
        assert again.release()
        assert not first.extend(MINUTE)

    def test_three_processes_and_one_lock(self, scene: Scene, tmp_path: Path) -> None:
        """C7: at most one is inside at any time; nothing that they count by reading and writing is lost."""
        (tmp_path / "count").write_text("0")
        workers = [start("contend", scene.kind, scene.url, "job", str(tmp_path), "12") for _ in range(3)]
        for worker in workers:
            _, errors = worker.communicate(timeout=60)
            assert worker.returncode == 0, errors
        assert (tmp_path / "count").read_text() == "36"

    def test_the_lock_of_a_killed_process_is_free_when_its_time_is_up(self, scene: Scene, locks: LockManager) -> None:
        """C7: kill -9 while it holds the lock; not before its time, and then at once."""
        with start("hold", scene.kind, scene.url, "job", "3600") as holder:
            assert holder.stdout is not None
            assert len(holder.stdout.readline().strip()) == 32
            assert is_held(locks)
            holder.kill()
        assert holder.returncode == -signal.SIGKILL
        scene.advance(timedelta(minutes=50))
        assert is_held(locks)
        scene.advance(timedelta(minutes=20))
        locks.acquire("job", MINUTE).release()


class TestPostgresLocks(Conformance):
    """Lease rows."""

    @pytest.fixture
    def scene(self, open_database: PostgresScene) -> PostgresScene:
        """Without locks."""
        open_database.reset()
        return open_database

    def test_a_lock_is_a_row_that_its_release_deletes(self, scene: PostgresScene) -> None:
        """C7: by the database's clock, unless a test has another one; taken over in place."""
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": scene.url}))
        lock = PostgresLocks(database).acquire("job", HOUR)
        (row,) = scene.rows.execute("SELECT *, now() AS now FROM distributed_locks").fetchall()
        assert (row["lock_key"], row["owner"]) == ("job", lock.token)
        assert row["lease_until"] - row["acquired_at"] == HOUR
        assert row["acquired_at"] <= row["now"]
        scene.advance(2 * HOUR)
        taken = scene.locks().acquire("job", HOUR)
        (row,) = scene.rows.execute("SELECT * FROM distributed_locks").fetchall()
        assert row["owner"] == taken.token
        taken.release()
        assert scene.rows.execute("SELECT FROM distributed_locks").fetchall() == []
        database.close()

    def test_a_connection_that_was_lost_is_made_again(self, scene: PostgresScene) -> None:
        """The sandbox was frozen: neither taking, extending nor releasing notices."""
        locks = scene.locks()
        locks.acquire("another", MINUTE)
        lose = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'locks'"
        scene.rows.execute(lose)
        lock = locks.acquire("job", MINUTE)
        scene.rows.execute(lose)
        lock.extend(MINUTE)
        scene.rows.execute(lose)
        lock.release()
        assert not is_held(locks)


class TestRedisLocks(Conformance):
    """Keys."""

    @pytest.fixture
    def scene(self, open_valkey: RedisScene) -> RedisScene:
        """Without locks."""
        open_valkey.reset()
        return open_valkey

    def test_a_lock_is_a_key_that_ends_by_itself(self, scene: RedisScene) -> None:
        """C7: under its prefix, with its owner's token, for as long as was asked."""
        lock = scene.locks().acquire("job", HOUR)
        assert scene.client.get("lock:job") == lock.token
        assert 0 < scene.client.pttl("lock:job") <= 3_600_000
        with connect(scene.url) as client:
            assert not is_held(RedisLocks(client, prefix="other:"))
        lock.release()
        assert scene.client.keys() == []

    def test_time_really_passes(self, scene: RedisScene) -> None:
        """C7: the server ends it, whoever else waits for it."""
        scene.locks().acquire("job", timedelta(milliseconds=50))
        with scene.locks().acquire("job", MINUTE, wait=MINUTE) as lock:
            assert scene.client.get("lock:job") == lock.token


def unreachable(locks: LockManager, lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """Every step fails as one that may be tried again."""
    steps: list[Callable[[], object]] = [
        lambda: locks.acquire("another", MINUTE),
        lambda: lock.extend(MINUTE),
        lock.release,
        lock.release,
    ]
    for step in steps:
        with pytest.raises(RetryableError) as caught:
            step()
        assert type(caught.value) is RetryableError
    caplog.clear()
    with lock:
        pass
    *_, line = logged(caplog, "WARNING", "ERROR")
    assert (line["level"], line["message"]) == ("WARNING", "could not release lock, it expires automatically")


def test_a_killed_postgresql_is_told_and_survived(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """C7: RetryableError while it is away; the lock is still there when it is back."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))
    locks = PostgresLocks(database)
    lock = locks.acquire("killed", HOUR)
    server.kill()
    try:
        unreachable(locks, lock, caplog)
    finally:
        server.start()
    assert is_held(locks, "killed")
    lock.extend(MINUTE)
    lock.release()
    assert not is_held(locks, "killed")
    database.close()


def test_a_killed_redis_is_told_and_survived(private_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """C7: RetryableError while it is away; a server that keeps nothing has lost the lock, and says so."""
    with connect(private_valkey.url) as client:
        locks = RedisLocks(client)
        lock = locks.acquire("killed", HOUR)
        private_valkey.kill()
        unreachable(locks, lock, caplog)
        private_valkey.start()
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        assert not is_held(locks, "killed")


@pytest.mark.parametrize("kind", [PostgresLocks, RedisLocks])
def test_locks_without_a_server_are_refused(kind: Any) -> None:
    """When they are put together, not when they are first needed."""
    with pytest.raises(ConfigError, match="requires a"):
        kind(None)
