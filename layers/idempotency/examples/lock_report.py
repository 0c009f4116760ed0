"""A lock: one process at a time writes the report.

Run it: DATABASE_URL=postgresql://… python lock_report.py

    first half
    another process holds the lock
    second half
"""

# shown from here
import os
from datetime import timedelta

from grantwire_idempotency import PostgresLocks  # or RedisLocks(connect_redis(url))
from grantwire_idempotency.errors import LockHeldError

locks = PostgresLocks(os.environ["DATABASE_URL"])


def write_report() -> None:
    with locks.acquire("nightly-report", ttl=timedelta(minutes=5)) as lock:
        print("first half")
        try_to_write_too()
        lock.extend(timedelta(minutes=5))  # LeaseLostError: the lock has expired, stop
        print("second half")


def try_to_write_too() -> None:
    try:
        locks.acquire("nightly-report", ttl=timedelta(minutes=5), wait=timedelta(milliseconds=100))
    except LockHeldError:
        print("another process holds the lock")


# shown to here


if __name__ == "__main__":
    write_report()
