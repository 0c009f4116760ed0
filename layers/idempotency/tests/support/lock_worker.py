"""Uses locks in a separate process.

With the arguments `contend KIND URL KEY FOLDER ROUNDS` it acquires the lock ROUNDS times and fails if another process
is in the critical section. With `hold KIND URL KEY SECONDS` it acquires the lock and waits until it is killed.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import PostgresLocks, RedisLocks, connect_redis
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency import LockManager

WAIT = timedelta(seconds=60)


def create_locks(kind: str, url: str) -> LockManager:
    """Return a lock manager that retries every millisecond."""
    if kind == "redis":
        return RedisLocks(connect_redis(url), sleep=lambda _: time.sleep(0.001))
    return PostgresLocks(
        Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url})), sleep=lambda _: time.sleep(0.001)
    )


@contextmanager
def critical_section(folder: Path) -> Iterator[None]:
    """Raise FileExistsError if another process is in the section."""
    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
    yield
    (folder / "inside").unlink()


def contend(kind: str, url: str, key: str, folder: str, rounds: str) -> None:
    """Increment a counter in a file, which loses increments without mutual exclusion."""
    count = Path(folder) / "count"
    manager = create_locks(kind, url)
    for _ in range(int(rounds)):
        with manager.acquire(key, WAIT, wait=WAIT), critical_section(Path(folder)):
            value = int(count.read_text())
            time.sleep(0.001)
            count.write_text(str(value + 1))


def hold(kind: str, url: str, key: str, seconds: str) -> None:
    """Hold the lock until the process is killed."""
    lock = create_locks(kind, url).acquire(key, timedelta(seconds=float(seconds)))
    print(lock.token, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "contend":
        contend(*sys.argv[2:])
    else:
        hold(*sys.argv[2:])
