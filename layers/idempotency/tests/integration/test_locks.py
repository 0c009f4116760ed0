"""C7: the guarantees of `locks/interface.py` for each kind of lock, also between processes."""

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
from grantwire_idempotency import PostgresLocks, RedisLocks, connect_redis
from grantwire_idempotency.errors import BadRequestError, ConfigError, LeaseLostError, LockHeldError, RetryableError
from layers.idempotency.tests.unit.doubles import logged
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from grantwire_idempotency import Lock, LockManager
    from infra.local.servers.postgres import PostgresServer
    from tests.support.fixtures import Rows
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Scene(Protocol):
    """One kind of lock with its server and its clock."""

    kind: str
    url: str

    def locks(self, **options: Any) -> LockManager:
        """Return a lock manager with its own connection."""

    def advance(self, step: timedelta) -> None:
        """Advance the clock."""


class PostgresScene:
    """Locks in PostgreSQL, with a clock that the test advances."""

    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._offset = timedelta(0)
        self._resources = ExitStack()
        self.rows = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def locks(self, **options: Any) -> LockManager:
        """Return a lock manager with its own connection."""
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": self.url}), application_name="locks")
        self._resources.callback(database.close)
        return PostgresLocks(database, clock=lambda: datetime.now(UTC) + self._offset, **options)

    def advance(self, step: timedelta) -> None:
        """Advance the clock."""
        self._offset += step

    def reset(self) -> None:
        """Delete all locks and close their lock managers."""
        self._resources.close()
        self._offset = timedelta(0)
        self.rows.execute("DELETE FROM distributed_locks")

    def close(self) -> None:
        """Close every connection."""
        self._resources.close()
        self.rows.close()


class RedisScene:
    """Locks in Redis; advancing time shortens the TTL of every key."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        self.url = url
        self._resources = ExitStack()
        self.client = connect_redis(url)

    def locks(self, **options: Any) -> LockManager:
        """Return a lock manager with its own connection."""
        return RedisLocks(self._resources.enter_context(connect_redis(self.url)), **options)

    def advance(self, step: timedelta) -> None:
        """Advance the clock."""
        for name in self.client.scan_iter("lock:*"):
            remaining = self.client.pttl(name) - step // timedelta(milliseconds=1)
            assert self.client.pexpire(name, max(0, remaining))

    def reset(self) -> None:
        """Delete all locks and close their lock managers."""
        self._resources.close()
        self.client.flushall()

    def close(self) -> None:
        """Close every connection."""
        self._resources.close()
        self.client.close()


@pytest.fixture(scope="module")
def open_database(databases: Databases) -> Iterator[PostgresScene]:
    """Return a scene whose database all tests of this module share."""
    url = databases.migrated()
    scene = PostgresScene(url)
    yield scene
    scene.close()
    databases.drop(url)


@pytest.fixture(scope="module")
def open_valkey(valkey_server: ValkeyServer) -> Iterator[RedisScene]:
    """Return a scene whose connections all tests of this module share."""
    scene = RedisScene(valkey_server.url)
    yield scene
    scene.close()


def is_held(locks: LockManager, key: str = "job") -> bool:
    """Return whether another owner fails to acquire the lock."""
    try:
        locks.acquire(key, MINUTE).release()
    except LockHeldError:
        return True
    return False


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a process that uses locks."""
    return subprocess.Popen(
        [sys.executable, "-m", "layers.idempotency.tests.support.lock_worker", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Conformance:
    """The conformance suite for locks; each subclass provides a scene."""

    @pytest.fixture
    def locks(self, scene: Scene) -> LockManager:
        """Return a lock manager with its own connection."""
        return scene.locks()

    @pytest.fixture
    def other_locks(self, scene: Scene) -> LockManager:
        """Return another lock manager."""
        return scene.locks()

    def test_lock_has_one_owner_until_released(self, locks: LockManager, other_locks: LockManager) -> None:
        """C7: another owner gets LockHeldError; other keys are other locks."""
        lock = locks.acquire("job", MINUTE)
        with pytest.raises(LockHeldError, match="another owner holds the lock") as caught:
            other_locks.acquire("job", MINUTE)
        assert isinstance(caught.value, RetryableError)
        assert not is_held(other_locks, "another job")
        lock.release()
        assert other_locks.acquire("job", MINUTE).token != lock.token

    def test_lock_is_not_reentrant(self, locks: LockManager) -> None:
        """The owner cannot acquire the lock a second time."""
        with locks.acquire("job", MINUTE):
            assert is_held(locks)

    def test_with_statement_releases_lock(self, locks: LockManager, other_locks: LockManager) -> None:
        """C7: at the end of the block and after an error, which propagates."""
        with locks.acquire("job", MINUTE) as lock:
            assert lock.key == "job"
            assert is_held(other_locks)
        assert not is_held(other_locks)
        with pytest.raises(ZeroDivisionError), locks.acquire("job", MINUTE):
            _ = 1 / 0
        assert not is_held(other_locks)

    def test_only_owner_can_release_or_extend(self, scene: Scene, locks: LockManager, other_locks: LockManager) -> None:
        """C7: an owner whose lock was taken over after expiry gets LeaseLostError and changes nothing."""
        late = locks.acquire("job", MINUTE)
        scene.advance(MINUTE + MINUTE)
        current = other_locks.acquire("job", HOUR)
        with pytest.raises(LeaseLostError, match="before it could be extended"):
            late.extend(HOUR)
        with pytest.raises(LeaseLostError, match="before it was released"):
            late.release()
        assert is_held(locks)
        current.extend(HOUR)
        current.release()
        assert not is_held(locks)

    def test_second_release_changes_nothing(self, locks: LockManager, other_locks: LockManager) -> None:
        """Not even if another owner holds the lock; a released lock cannot be extended."""
        lock = locks.acquire("job", MINUTE)
        lock.release()
        other = other_locks.acquire("job", MINUTE)
        lock.release()
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        assert is_held(locks)
        other.release()

    def test_extend_sets_expiry_from_now(self, scene: Scene, locks: LockManager, other_locks: LockManager) -> None:
        """C7: the new TTL may also be shorter."""
        lock = locks.acquire("job", 10 * MINUTE)
        for _ in range(3):
            scene.advance(8 * MINUTE)
            lock.extend(10 * MINUTE)
        assert is_held(other_locks)
        lock.extend(MINUTE)
        scene.advance(2 * MINUTE)
        assert not is_held(other_locks)

    def test_expired_lock_cannot_be_extended(self, scene: Scene, locks: LockManager, other_locks: LockManager) -> None:
        """C7: even if it is free now, because another owner may have held it."""
        lock = locks.acquire("job", MINUTE)
        scene.advance(2 * MINUTE)
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        with pytest.raises(LeaseLostError):
            lock.release()
        assert not is_held(other_locks)

    def test_each_owner_has_a_higher_fencing_number(
        self, scene: Scene, locks: LockManager, other_locks: LockManager
    ) -> None:
        """C20: after a release, after an expiry, and after a release by an owner whose lease had expired."""
        released = locks.acquire("job", MINUTE)
        released.release()
        expired = other_locks.acquire("job", MINUTE)
        scene.advance(2 * MINUTE)
        late = locks.acquire("job", MINUTE)
        scene.advance(2 * MINUTE)
        with pytest.raises(LeaseLostError):
            late.release()
        current = other_locks.acquire("job", MINUTE)
        assert 0 < released.fence < expired.fence < late.fence < current.fence
        current.extend(HOUR)
        assert current.fence > late.fence

    def test_late_owner_cannot_overwrite_its_successor(
        self, scene: Scene, locks: LockManager, other_locks: LockManager, rows: Rows
    ) -> None:
        """C20: the fencing number in the condition of the caller's own UPDATE, by an owner that was paused."""
        rows.execute("CREATE TABLE reports (text text, fence bigint)")
        rows.execute("INSERT INTO reports VALUES ('', 0)")
        update = "UPDATE reports SET text = %(text)s, fence = %(fence)s WHERE fence <= %(fence)s"
        paused = locks.acquire("job", MINUTE)
        scene.advance(2 * MINUTE)
        current = other_locks.acquire("job", MINUTE)
        for lock, text in ((current, "first"), (current, "second"), (paused, "late")):
            rows.execute(update, {"text": text, "fence": lock.fence})
        assert rows.execute("SELECT text FROM reports").fetchall() == [{"text": "second"}]

    def test_lock_lost_during_block_raises_at_its_end(
        self, scene: Scene, locks: LockManager, other_locks: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C7: LeaseLostError is raised, unless the block itself raised an error."""

        def outlast_lock(result: float) -> float:
            scene.advance(2 * MINUTE)
            other_locks.acquire("job", HOUR)
            return 1 / result

        with pytest.raises(LeaseLostError), locks.acquire("job", MINUTE):
            outlast_lock(1)
        scene.advance(2 * HOUR)
        caplog.clear()
        with pytest.raises(ZeroDivisionError), locks.acquire("job", MINUTE):
            outlast_lock(0)
        (line,) = logged(caplog, "WARNING", "ERROR")
        assert (line["level"], line["message"], line["lock_key"]) == ("ERROR", "lock lost", "job")

    def test_one_of_many_threads_acquires_lock(self, scene: Scene) -> None:
        """C7: with their own connections, for a free lock and for an expired one."""
        managers = [scene.locks() for _ in range(8)]

        def try_acquire(number: int) -> Lock | None:
            try:
                return managers[number].acquire("job", MINUTE)
            except LockHeldError:
                return None

        for _ in range(5):
            acquired = [lock for lock in run_concurrently(8, try_acquire) if lock is not None]
            assert len(acquired) == 1
            scene.advance(2 * MINUTE)
        acquired = [lock for lock in run_concurrently(8, try_acquire) if lock is not None]
        acquired[0].release()
        assert len(acquired) == 1

    def test_acquire_retries_with_backoff_until_free(self, scene: Scene, other_locks: LockManager) -> None:
        """C7: the delays grow, and the wait has a limit."""
        now = 0.0
        delays: list[float] = []
        held = other_locks.acquire("job", HOUR)

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            delays.append(seconds)
            if now > 100:
                held.release()

        locks = scene.locks(sleep=sleep, monotonic=lambda: now)
        with pytest.raises(LockHeldError):
            locks.acquire("job", MINUTE)
        assert delays == []
        with pytest.raises(LockHeldError):
            locks.acquire("job", MINUTE, wait=timedelta(seconds=10))
        assert sum(delays) == now == pytest.approx(10)
        assert delays[:3] == [0.05, 0.1, 0.2]
        assert max(delays) == 1
        locks.acquire("job", MINUTE, wait=timedelta(minutes=5)).release()
        assert 100 < now < 102

    def test_invalid_key_is_rejected(self, locks: LockManager) -> None:
        """The same keys are invalid for every server."""
        invalid_keys: list[Any] = ["", " ", "x" * 257, "a\x00b", "a\nb", "\ud800", None, 7]
        for key in invalid_keys:
            with pytest.raises(BadRequestError, match="lock key"):
                locks.acquire(key, MINUTE)

    def test_any_other_text_is_a_valid_key(self, locks: LockManager, other_locks: LockManager) -> None:
        """Also if it has more bytes than characters."""
        for key in ("x" * 256, "münze:{1}/%s\\'\"", "\N{GRINNING FACE} " * 20):
            with locks.acquire(key, MINUTE):
                assert is_held(other_locks, key)

    def test_ttl_must_be_positive(self, locks: LockManager, other_locks: LockManager) -> None:
        """A lock without expiry could block for ever; nothing is acquired."""
        invalid_ttls: list[Any] = [timedelta(0), timedelta(seconds=-1), None, 60]
        for ttl in invalid_ttls:
            with pytest.raises(ConfigError, match="ttl must be a positive timedelta"):
                locks.acquire("job", ttl)
            lock = other_locks.acquire("job", MINUTE)
            with pytest.raises(ConfigError):
                lock.extend(ttl)
            lock.release()

    def test_extreme_ttls_are_limited(self, locks: LockManager, other_locks: LockManager) -> None:
        """`timedelta.max` and one microsecond are replaced by the nearest supported TTL."""
        with locks.acquire("job", timedelta.max) as lock:
            lock.extend(timedelta.max)
            assert is_held(other_locks)
        locks.acquire("job", timedelta(microseconds=1))
        other_locks.acquire("job", MINUTE, wait=MINUTE).release()

    def test_repeated_acquire_with_same_token_succeeds(self, locks: LockManager, other_locks: LockManager) -> None:
        """The response to the first one was lost; the token identifies the owner."""
        first, again = (locks._try_acquire("job", "token", MINUTE) for _ in range(2))  # noqa: SLF001 - a repeat of the same request
        assert first is not None
        assert again is not None
        assert other_locks._try_acquire("job", "another", MINUTE) is None  # noqa: SLF001
        assert again.extend(MINUTE)
        assert again.release()
        assert not first.extend(MINUTE)

    def test_lock_excludes_other_processes(self, scene: Scene, tmp_path: Path) -> None:
        """C7: at most one of three processes is in the critical section, so no increment is lost."""
        (tmp_path / "count").write_text("0")
        workers = [start("contend", scene.kind, scene.url, "job", str(tmp_path), "12") for _ in range(3)]
        for worker in workers:
            _, errors = worker.communicate(timeout=60)
            assert worker.returncode == 0, errors
        assert (tmp_path / "count").read_text() == "36"

    def test_lock_of_killed_process_expires(self, scene: Scene, locks: LockManager) -> None:
        """C7: after SIGKILL the lock is held until its TTL ends, then it is free."""
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
    """Locks in PostgreSQL."""

    @pytest.fixture
    def scene(self, open_database: PostgresScene) -> PostgresScene:
        """Provide an empty scene."""
        open_database.reset()
        return open_database

    def test_release_deletes_row_of_lock(self, scene: PostgresScene) -> None:
        """C7: the row uses the clock of the database; a takeover replaces the row."""
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

    def test_lost_connection_is_reestablished(self, scene: PostgresScene) -> None:
        """After a freeze of the Lambda environment, acquire, extend and release still work."""
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
    """Locks in Redis."""

    @pytest.fixture
    def scene(self, open_valkey: RedisScene) -> RedisScene:
        """Provide an empty scene."""
        open_valkey.reset()
        return open_valkey

    def test_lock_is_key_with_ttl_and_token(self, scene: RedisScene) -> None:
        """C7: the key has the prefix, the owner's token and the TTL."""
        lock = scene.locks().acquire("job", HOUR)
        assert scene.client.get("lock:job") == lock.token
        assert 0 < scene.client.pttl("lock:job") <= 3_600_000
        with connect_redis(scene.url) as client:
            assert not is_held(RedisLocks(client, prefix="other:"))
        lock.release()
        assert scene.client.keys() == []

    def test_lock_expires_in_real_time(self, scene: RedisScene) -> None:
        """C7: the server deletes the key, and a options owner acquires the lock."""
        scene.locks().acquire("job", timedelta(milliseconds=50))
        with scene.locks().acquire("job", MINUTE, wait=MINUTE) as lock:
            assert scene.client.get("lock:job") == lock.token


def assert_unavailable(locks: LockManager, lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """Check that every operation raises RetryableError."""
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


def test_lock_survives_kill_of_postgresql(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """C7: RetryableError while the server is down; after the restart the lock is still held."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))
    locks = PostgresLocks(database)
    lock = locks.acquire("killed", HOUR)
    server.kill()
    try:
        assert_unavailable(locks, lock, caplog)
    finally:
        server.start()
    assert is_held(locks, "killed")
    lock.extend(MINUTE)
    lock.release()
    assert not is_held(locks, "killed")
    database.close()


def test_lock_is_lost_with_killed_redis(private_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    """C7: RetryableError while the server is down; without persistence the lock is lost, and LeaseLostError says so."""
    with connect_redis(private_valkey.url) as client:
        locks = RedisLocks(client)
        lock = locks.acquire("killed", HOUR)
        private_valkey.kill()
        assert_unavailable(locks, lock, caplog)
        private_valkey.start()
        with pytest.raises(LeaseLostError):
            lock.extend(MINUTE)
        assert not is_held(locks, "killed")


@pytest.mark.parametrize("kind", [PostgresLocks, RedisLocks])
def test_missing_server_raises_config_error(kind: Any) -> None:
    """Creating the lock manager validates its arguments."""
    with pytest.raises(ConfigError, match="requires a"):
        kind(None)
