"""C29: a SQLite file that several processes share. The conformance suite tests the rest."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_idempotency import (
    Claim,
    Duplicate,
    FailMode,
    IdempotentConsumer,
    InProgress,
    Key,
    Message,
    SqliteStore,
)
from grantwire_idempotency.errors import BusyError, ConfigError, RetryableError
from infra.local.system.processes import wait_until
from layers.idempotency.tests.integration.test_threads_and_forks import run_forked
from layers.idempotency.tests.support.sqlite_worker import HAND_OVERS
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEY = Key("order:1")
PROCESSES = 4


class TimeLimitError(Exception):
    """A time limit, as RQ and Celery raise it in a signal handler."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Return a store on a new file."""
    with closing(SqliteStore(tmp_path / "keys.db")) as store:
        yield store


def run_workers(folder: Path, keys: int) -> list[str]:
    """Run workers on a file that does not exist yet, and return the lines that they wrote."""
    command = (
        *(sys.executable, "-m", "layers.idempotency.tests.support.sqlite_worker"),
        *(str(folder / "keys.db"), str(folder / "report"), str(keys)),
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH}
    workers = [
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    errors = [worker.communicate()[1].decode() for worker in workers]
    assert errors == [""] * PROCESSES
    return (folder / "report").read_text().splitlines()


def test_each_key_is_claimed_once_by_processes_that_create_the_file(tmp_path: Path) -> None:
    """C29: they open the new file at the same time."""
    assert Counter(run_workers(tmp_path, 50)) == Counter(f"key-{number}" for number in range(50))


def test_fencing_numbers_grow_while_processes_hand_over_a_key(tmp_path: Path) -> None:
    """C25: also after a cleanup has deleted the row of the key."""
    numbers = [int(line) for line in run_workers(tmp_path, 0)]
    assert len(numbers) == PROCESSES * HAND_OVERS
    assert numbers == sorted(set(numbers))


@contextmanager
def other_writer(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Let another connection have the write lock of the file."""
    store.cleanup()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_busy_file_is_no_outage(tmp_path: Path) -> None:
    """C23: another process writes for longer than the timeout. No fail mode runs the work then."""
    ran: list[str] = []
    times = count(0, 4)
    with closing(SqliteStore(tmp_path / "keys.db", timeout=timedelta(milliseconds=50))) as store:
        consumer = IdempotentConsumer(
            store,
            lambda message: ran.append(message.id),
            name="job",
            fail_mode=FailMode.OPEN,
            sleep=lambda _: None,
            clock=lambda: next(times),
        )
        with other_writer(store, tmp_path / "keys.db") as writer:
            with pytest.raises(BusyError):
                store.check(KEY, MINUTE)
            with pytest.raises(BusyError):
                consumer.process(Message("m-1"))
            assert ran == []
            writer.execute("ROLLBACK")
            assert [consumer.process(Message("m-1")).replayed for _ in range(2)] == [False, True]
            assert ran == ["m-1"]


def test_call_waits_for_the_writer(store: SqliteStore, tmp_path: Path) -> None:
    """C23: the lock is free before the timeout has passed."""
    with other_writer(store, tmp_path / "keys.db") as writer:
        checks: list[Any] = []
        thread = threading.Thread(target=lambda: checks.append(store.check(KEY, MINUTE)))
        thread.start()
        thread.join(0.05)
        assert checks == []
        writer.execute("ROLLBACK")
        thread.join()
    assert isinstance(checks[0], Claim)


def test_time_limit_ends_a_wait_and_leaves_the_store_usable(tmp_path: Path) -> None:
    """C24: SQLite itself would wait to the end before Python could run the handler of the signal."""

    def interrupt(*_: object) -> None:
        raise TimeLimitError

    with closing(SqliteStore(tmp_path / "keys.db", timeout=DAY)) as store:
        before = signal.signal(signal.SIGUSR1, interrupt)
        limit = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        try:
            with other_writer(store, tmp_path / "keys.db") as writer:
                limit.start()
                with pytest.raises(TimeLimitError):
                    store.check(KEY, MINUTE)
                writer.execute("ROLLBACK")
        finally:
            limit.join()
            signal.signal(signal.SIGUSR1, before)
        assert isinstance(store.check(KEY, MINUTE), Claim)


def test_transaction_of_a_killed_process_is_rolled_back(store: SqliteStore, tmp_path: Path) -> None:
    """C4: SIGKILL after the claim was written and before it was committed."""
    store.cleanup()
    child = os.fork()
    if child == 0:
        try:
            other = SqliteStore(tmp_path / "keys.db", clock=lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type, return-value]
            other.check(KEY, MINUTE)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert isinstance(store.check(KEY, MINUTE), Claim)


def test_clock_decides_about_expiry(tmp_path: Path) -> None:
    """C29: a test of a user passes its own clock, and needs no sleep."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with closing(SqliteStore(tmp_path / "keys.db", clock=lambda: now)) as store:
        claim = store.check(KEY, MINUTE)
        assert isinstance(claim, Claim)
        assert store.check(KEY, MINUTE) == InProgress(KEY, MINUTE)
        store.store_result(claim, "done", DAY)
        now += DAY - timedelta(milliseconds=1)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")
        now += timedelta(milliseconds=1)
        assert isinstance(store.check(KEY, MINUTE), Claim)


def test_cleanup_and_delete_completed_count_rows(tmp_path: Path) -> None:
    """C4: in batches of 1,000, the oldest first; a live claim stays."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with closing(SqliteStore(tmp_path / "keys.db", clock=lambda: now)) as store:
        for number in range(3):
            claim = store.check(Key(f"done-{number}"), MINUTE)
            assert isinstance(claim, Claim)
            store.store_result(claim, "done", number * timedelta(hours=1) + MINUTE)
        store.check(KEY, DAY)
        assert store.cleanup() == 0
        now += timedelta(minutes=2)
        assert store.cleanup() == 1
        assert store.delete_completed(MINUTE) == 2
        assert store.check(KEY, MINUTE) == InProgress(KEY, DAY - timedelta(minutes=2))


@pytest.mark.parametrize("path", ["", ":memory:", "file:keys.db", "sqlite:///keys.db", None, 3])
def test_what_is_no_path_is_refused_when_wired(path: Any) -> None:
    """C29: SQLite would create a file with such a name, or forget the keys with the connection."""
    with pytest.raises(ConfigError, match="path must be the path of a file"):
        SqliteStore(path)


@pytest.mark.parametrize("kind", ["no folder", "a folder", "another file"])
def test_wrong_path_is_no_outage(kind: str, tmp_path: Path) -> None:
    """C29: it is an error of the program, in every fail mode, and the text has the reason."""
    path = tmp_path / "missing" / "keys.db" if kind == "no folder" else tmp_path / "keys.db"
    if kind == "a folder":
        path.mkdir()
    elif kind == "another file":
        path.write_text("Dear reader, this is no database. " * 100)
    with pytest.raises(ConfigError, match=r"keys\.db must be a SQLite database.*SQLITE_(CANTOPEN|NOTADB)"):
        SqliteStore(path).check(KEY, MINUTE)


def test_file_that_was_deleted_is_not_used_any_more(store: SqliteStore, tmp_path: Path) -> None:
    """C29: the processes that were running before must agree with those that create the new file."""
    store.check(Key("before"), MINUTE)
    for file in tmp_path.iterdir():
        file.unlink()
    with closing(SqliteStore(tmp_path / "keys.db")) as other:
        assert isinstance(other.check(KEY, MINUTE), Claim)
        assert isinstance(store.check(KEY, MINUTE), InProgress)


def test_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon changes its folder."""
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore("keys.db")) as store:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        store.check(KEY, MINUTE)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["keys.db"]


def _use_with_limit(store: SqliteStore, kind: int, limit: int) -> str:
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    try:
        claim = store.check(KEY, MINUTE)
        assert isinstance(claim, Claim)
        store.store_result(claim, "x" * 1_000_000, DAY)
    except RetryableError as error:
        return type(error).__name__
    return "done"


def test_full_disk_is_an_outage_and_too_many_open_files_are_not(store: SqliteStore, tmp_path: Path) -> None:
    """C23: in processes of their own, whose files may not grow, or which may open no more of them."""
    store.cleanup()
    only_standard_streams = 3  # what is open stays open
    limits = ((resource.RLIMIT_FSIZE, 500_000), (resource.RLIMIT_NOFILE, only_standard_streams))
    # Only the second one waits until its limit, unless one waits for the other's lock.
    timeouts = (timedelta(seconds=60), timedelta(milliseconds=50))
    stores = [SqliteStore(tmp_path / "keys.db", timeout=timeout) for timeout in timeouts]
    reports = run_forked(lambda number: _use_with_limit(stores[number], *limits[number]), 2)
    assert reports == ["RetryableError", "BusyError"]
    assert wait_until(lambda: isinstance(store.check(KEY, MINUTE), InProgress), 1)
