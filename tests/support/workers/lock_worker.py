"""Locks in processes of their own.

`python -m tests.support.workers.lock_worker contend KIND URL KEY FOLDER ROUNDS` enters so often, and fails if it is not
alone inside. `python -m tests.support.workers.lock_worker hold KIND URL KEY SECONDS` takes the lock and works until it
is killed.
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
from grantwire.idempotency.locks.postgres import PostgresLocks
from grantwire.idempotency.locks.redis import RedisLocks
from grantwire.idempotency.stores.redis import connect
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.idempotency.locks.interface import LockManager

WAIT = timedelta(seconds=60)


def locks(kind: str, url: str) -> LockManager:
    """Locks on a server, whose waiting is short."""
    if kind == "redis":
        return RedisLocks(connect(url), sleep=lambda _: time.sleep(0.001))
    return PostgresLocks(
        Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url})), sleep=lambda _: time.sleep(0.001)
    )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Fails if somebody else is in here."""
    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
    yield
    (folder / "inside").unlink()


def contend(kind: str, url: str, key: str, folder: str, rounds: str) -> None:
    """Count in a file, by reading and writing it."""
    count = Path(folder) / "count"
    manager = locks(kind, url)
    for _ in range(int(rounds)):
        with manager.acquire(key, WAIT, wait=WAIT), alone(Path(folder)):
            seen = int(count.read_text())
            time.sleep(0.001)
            count.write_text(str(seen + 1))


def hold(kind: str, url: str, key: str, seconds: str) -> None:
    """Until killed."""
    lock = locks(kind, url).acquire(key, timedelta(seconds=float(seconds)))
    print(lock.token, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "contend":
        contend(*sys.argv[2:])
    else:
        hold(*sys.argv[2:])
