"""Clients with batches of the same entitlements, in any order, while all workers run that lock the same rows (W7).

`make check ARGS=contention` runs 10,000 batches on a PostgreSQL of its own, and its log has the outcome. The test of
this name runs a few.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.batch_store import EntitlementBatches
from grantwire.entitlements.batches import BatchCommand
from grantwire.entitlements.expiry import RECORD_DUE
from grantwire.entitlements.settings import TimeSettings
from grantwire.errors import RetryableError
from grantwire.idempotency import IdempotencySettings
from grantwire.outbox import store
from grantwire.outbox.confirmation.store import put_back
from grantwire.settings import load
from grantwire.workers.leases import Completion, Failure, RetryDecision
from infra.local.servers.postgres import UNSAFE, PostgresServer
from tests.support.migrations import migrate
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection

CLIENTS = 4
RELAYS = 2
BATCH_SIZE = 50
USERS = 100
# So many grants of new entitlements are in each batch, and each of them is in the batches of several clients.
NEW = 10

_LEASE = timedelta(seconds=30)
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
# The part of its turns in which the confirmation finds nothing that was lost.
_NOTHING_LOST = 0.8
# On a busy machine, only a deadlock may end a wait.
_PATIENT = {**PLAINTEXT, "IDEMPOTENCY_LOCK_WAIT": "20s", "DATABASE_STATEMENT_TIMEOUT": "60s"}
_DEADLOCKS: LiteralString = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
# The versions of each entitlement count 1, 2, 3 … up to its own, and the first open event is ready or FAILED.
_BROKEN: LiteralString = """
SELECT (SELECT count(*) FROM entitlements e
         WHERE e.version <> (SELECT count(*) FROM outbox_events o
                              WHERE o.aggregate_key = entitlement_aggregate_key(e.user_id, e.stock_keeping_unit)))
     + (SELECT count(*) FROM (
          SELECT DISTINCT ON (aggregate_key) ready, status FROM outbox_events
           WHERE published_at IS NULL AND discarded_at IS NULL ORDER BY aggregate_key, aggregate_version) AS first
         WHERE NOT first.ready AND first.status <> 'FAILED')
"""


@dataclass(slots=True)
class Outcome:
    """What a run did. `broken` is the number of entitlements whose versions or events are not as they must be."""

    batches: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    worked: Counter[str] = field(default_factory=Counter)
    deadlocks: int = 0
    broken: int = 0
    seconds: float = 0.0


def contend(database_url: str, owner_url: str, batches: int, seed: int = 1) -> Outcome:
    """Run `batches` batches of four clients while relays, confirmation, expiry, redrive, discard and sweep work.

    An error of any of them but RetryableError is raised.
    """
    outcome = Outcome()
    before = _read_number(owner_url, _DEADLOCKS)
    numbers = itertools.count()
    ended = threading.Event()
    started_at = time.monotonic()

    def run_client(number: int) -> None:
        chance = random.Random(seed * 1000 + number)  # noqa: S311
        with _database(database_url) as database:
            settings = load(IdempotencySettings, _PATIENT), load(TimeSettings, _PATIENT)
            timeout = load(DatabaseSettings, {**_PATIENT, "DATABASE_URL": database_url}).statement_timeout
            execute = EntitlementBatches(database, *settings, timeout).execute
            while not ended.is_set() and (batch := next(numbers)) < batches:
                _send(execute, _build_batch(chance, batch), outcome)

    def run_worker(work: Callable[[Connection, random.Random], dict[str, int]], number: int) -> None:
        chance = random.Random(seed * 2000 + number)  # noqa: S311
        with _database(database_url) as database:
            while not ended.is_set():
                try:
                    with database.session() as connection:
                        outcome.worked.update(work(connection, chance))
                except RetryableError as error:
                    outcome.statuses[f"worker: {error}"] += 1
                time.sleep(0.002)

    workers = [_relay] * RELAYS + [_expire, _operate, _put_back]
    with ThreadPoolExecutor(CLIENTS + len(workers)) as pool:
        running = [pool.submit(run_worker, work, number) for number, work in enumerate(workers)]
        clients = [pool.submit(run_client, number) for number in range(CLIENTS)]
        try:
            for client in clients:
                client.result()
        finally:
            ended.set()
        for worker in running:
            worker.result()
    outcome.seconds = round(time.monotonic() - started_at, 1)
    outcome.deadlocks = _read_number(owner_url, _DEADLOCKS) - before
    outcome.broken = _read_number(owner_url, _BROKEN)
    return outcome


def _build_batch(chance: random.Random, batch: int) -> BatchCommand:
    """Return a batch of entitlements in any order: most exist already, the others are new to several clients."""
    now = datetime.now(UTC)
    users = [f"u{number}" for number in chance.sample(range(USERS), BATCH_SIZE - NEW)]
    users += [f"new{batch // CLIENTS}-{number}" for number in chance.sample(range(NEW * 2), NEW)]
    chance.shuffle(users)
    items: list[dict[str, Any]] = []
    for position, user in enumerate(users):
        operation = chance.choice(["grant", "grant", "revoke", "extend"])
        fields: dict[str, Any] = {}
        if operation != "revoke":
            fields["expires_at"] = (now + timedelta(seconds=chance.uniform(0.05, 2))).isoformat()
        if operation == "grant" and chance.random() < 0.3:
            fields["starts_at"] = (now + timedelta(seconds=0.04)).isoformat()
        items.append(
            {
                "operation": operation,
                "idempotency_key": f"b{batch}-{position}",
                "user_id": user,
                "stock_keeping_unit": "item1",
                "reason": "test",
                "purchase_id": "p",
                **fields,
            }
        )
    return BatchCommand.parse({"items": items})


def _send(execute: Callable[..., Any], command: BatchCommand, outcome: Outcome) -> None:
    try:
        result = execute(command, "tests", "1-0-0")
    except RetryableError:
        outcome.statuses["503"] += 1
    else:
        outcome.statuses.update(str(getattr(each, "status_code", type(each).__name__)) for each in result.results)
    outcome.batches += 1


def _relay(connection: Connection, chance: random.Random) -> dict[str, int]:
    """Claim a batch of events, renew it, and complete, fail or release each."""
    token = f"relay/{chance.random()}"
    events = store.claim(connection, token, limit=100, lease=_LEASE)
    if not events:
        return {}
    chance.shuffle(events)
    ids = [event.event_id for event in events]
    store.renew(connection, token, ids, lease=_LEASE)
    # A run of one aggregate ends with its first failure, so that no event overtakes another one.
    heads = {
        event.aggregate_key: min(e.aggregate_version for e in events if e.aggregate_key == event.aggregate_key)
        for event in events
    }
    failed = [e.event_id for e in events if e.aggregate_version == heads[e.aggregate_key] and chance.random() < 0.1]
    parked = {e.aggregate_key for e in events if e.event_id in failed}
    released = [e.event_id for e in events if e.aggregate_key in parked and e.event_id not in failed]
    done = [each for each in ids if each not in failed and each not in released]
    if done:
        store.complete(connection, token, [Completion(each, 1) for each in done])
    if failed:
        store.fail(connection, token, [Failure(each, RetryDecision(10, None), "no") for each in failed])
    if released:
        store.release(connection, token, released)
    return {"published": len(done), "failed": len(failed), "released": len(released)}


def _expire(connection: Connection, _chance: random.Random) -> dict[str, int]:
    """Record the starts, notices and ends that are due."""
    parameters = {
        "limit": 100,
        "grace": "0",
        "notice": "1 second",
        "trace_id": None,
        "isolate": False,
        "skip": [0, 0, 0],
    }
    row = connection.execute(RECORD_DUE, parameters).fetchone()
    assert row is not None
    return {"started": row[0], "expiring": row[1], "expired": row[2]}


def _operate(connection: Connection, chance: random.Random) -> dict[str, int]:
    """Redrive some FAILED events, discard others, and look for stuck ones."""
    rows = connection.execute("SELECT event_id FROM outbox_events WHERE failed_at IS NOT NULL LIMIT 100").fetchall()
    ids = [event_id for (event_id,) in rows]
    chance.shuffle(ids)
    middle = len(ids) // 2
    redriven, discarded = store.redrive(connection, ids[:middle]), store.discard(connection, ids[middle:])
    return {
        "redriven": len(redriven),
        "discarded": len(discarded),
        "stuck": store.promote_stuck(connection),
    }


def _put_back(connection: Connection, chance: random.Random) -> dict[str, int]:
    """Put back some of the last published events, as if the stream had lost them."""
    query = "SELECT event_id::text, stream_sequence FROM outbox_events WHERE published_at IS NOT NULL"
    events = connection.execute(query + " ORDER BY published_at DESC LIMIT 200").fetchall()
    if not events or chance.random() < _NOTHING_LOST:
        return {}
    lost = chance.sample(events, min(20, len(events)))
    result = put_back(
        connection, lost, cause="LOST", oldest=_BEGINNING, backoff=timedelta(0), now=datetime.now(UTC), lock_wait=_LEASE
    )
    return {"put back": 0 if result is None else result.put_back}


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = Database(load(DatabaseSettings, {**_PATIENT, "DATABASE_URL": url}))
    try:
        yield database
    finally:
        database.close()


def _read_number(url: str, query: LiteralString) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def main(batches: int) -> None:
    """Run on a server of its own and print the outcome; the exit code is 1 after a deadlock or a broken entitlement."""
    with tempfile.TemporaryDirectory(prefix="grantwire-contention-") as folder:
        server = PostgresServer(Path(folder) / "postgres", settings=UNSAFE)
        server.start()
        try:
            migrate(server.url())
            outcome = contend(server.url(), server.url(), batches)
        finally:
            server.destroy()
    print(json.dumps({name: getattr(outcome, name) for name in Outcome.__slots__}, indent=2))  # noqa: T201
    sys.exit(bool(outcome.deadlocks or outcome.broken))


if __name__ == "__main__":
    main(int(sys.argv[1]))
