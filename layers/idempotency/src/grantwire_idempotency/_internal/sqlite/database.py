"""One connection to a SQLite file, and its write transactions.

Processes take turns at the file, and threads of a process at the connection. SQLite lets one connection write at a
time; the others wait here and not in SQLite, so that a signal or a time limit ends their wait.

A connection must not exist in two processes: both would believe that they hold its locks. So it is closed before a
fork, and both processes open their own.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.backoff import Backoff
from grantwire_idempotency._internal.foundation.forks import prepare_forks
from grantwire_idempotency._internal.foundation.shortages import BUSY
from grantwire_idempotency._internal.foundation.wiring import require
from grantwire_idempotency._internal.sqlite.errors import convert_error, describe, is_busy
from grantwire_idempotency.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# Between two attempts to get the file. A transaction takes about a millisecond.
_BACKOFF = Backoff(timedelta(milliseconds=1), timedelta(milliseconds=10), timedelta(0), 0.5, 1.5)
# Connections of the process that forked this one, if a thread was using them: kept, because closing them would harm it.
_FOREIGN: list[sqlite3.Connection | None] = []


class SqliteDatabase:
    """A file with the tables of `schema`, which are created when it is opened. Safe in threads and across forks."""

    def __init__(self, path: Path, schema: str, timeout: timedelta, logger: LibraryLogger) -> None:
        self._path = path
        self._schema = schema
        self._seconds = timeout.total_seconds()
        self._logger = logger
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        prepare_forks(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction: it is committed at the end of the block, and rolled back after any exception.

        Raises BusyError if other threads or processes have the file for longer than the timeout.
        """
        deadline = time.monotonic() + self._seconds
        with self._lock:
            try:
                connection = self._begin(deadline)
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._disconnect()
                raise convert_error(error, self._path, self._logger) from error
            except BaseException:
                self._roll_back()
                raise

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        with self._lock:
            self._disconnect()

    def _begin(self, deadline: float) -> sqlite3.Connection:
        """Begin a transaction that no other one can overtake, and wait for the one that has the file."""
        attempt, reason = 0, "other threads use the connection"
        while True:
            attempt += 1
            if time.monotonic() > deadline:
                logger = self._logger
                logger.debug("no free connection", extra={"reason": reason})
                raise BusyError(BUSY)
            try:
                if self._connection is None or self._find_file() != self._file:
                    self._disconnect()
                    self._connection = self._open()
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise
                reason = describe(error)
            else:
                return self._connection
            time.sleep(_BACKOFF.delay(attempt, random.random).total_seconds())

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            require((mode == "wal", f"{self._path} must be on a local disk: SQLite needs a write-ahead log"))
            connection.execute("PRAGMA synchronous = FULL")  # a commit survives a loss of power
            connection.executescript(self._schema)
            self._file = self._find_file()
        except BaseException:
            connection.close()
            raise
        return connection

    def _find_file(self) -> tuple[int, int] | None:
        """Return what identifies the file. A connection to a deleted file would go on, and others use the new one."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def prepare_fork(self) -> bool:
        """See `ForkPrepared`. Waits for the transaction of another thread."""
        has_lock = self._lock.acquire(timeout=self._seconds)
        if has_lock:
            self._disconnect()
        return has_lock

    def resume_after_fork(self) -> None:
        """See `ForkPrepared`."""
        self._lock.release()

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        _FOREIGN.append(self._connection)
        self._lock, self._connection = threading.Lock(), None
