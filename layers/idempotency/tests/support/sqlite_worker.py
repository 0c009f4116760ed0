"""Takes keys of a SQLite file in a process of its own, and writes what it got into another file.

`python -m layers.idempotency.tests.support.sqlite_worker STORE REPORT KEYS` waits for a line on standard input, so that
all workers begin at the same time. `KEYS` of 0 is one key, which the workers hand over to each other.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

from grantwire_idempotency import Claim, Duplicate, Key, SqliteStore

MINUTE = timedelta(minutes=1)
HAND_OVERS = 40


def write(report: int, text: str) -> None:
    """Append a line in one call, so that the lines of processes do not mix."""
    os.write(report, f"{text}\n".encode())


def claim_each(store: SqliteStore, report: int, keys: int) -> None:
    """Claim and complete each key, unless another process does so."""
    for number in range(keys):
        check = store.check(Key(f"key-{number}"), MINUTE)
        if isinstance(check, Claim):
            write(report, f"key-{number}")
            store.store_result(check, str(number), MINUTE)
        elif isinstance(check, Duplicate) and check.result != str(number):
            write(report, f"wrong result of key-{number}: {check.result}")


def hand_over(store: SqliteStore, report: int) -> None:
    """Take the key again and again, and write its fencing number while it is claimed."""
    taken = 0
    while taken < HAND_OVERS:
        check = store.check(Key("job"), MINUTE)
        if isinstance(check, Claim):
            taken += 1
            write(report, str(check.fence))
            store.store_failure(check, "next", timedelta(0))
            store.cleanup()


if __name__ == "__main__":
    path, report_path, keys = sys.argv[1:]
    file = os.open(report_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    # The tests say what happens if the file is busy for longer than the timeout.
    worker_store = SqliteStore(path, timeout=MINUTE)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    if keys == "0":
        hand_over(worker_store, file)
    else:
        claim_each(worker_store, file, int(keys))
