"""P2: rebuilds from both sources while entitlements change; afterwards the read model equals the system of record."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.operations.commands import REBUILD
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from grantwire.workers.budget import Budget
from tests.support.client import Client
from tests.support.commands import Operations
from tests.support.concurrency import run_concurrently
from tests.support.read_model import count_deadlocks, read_model_rows, record_rows
from tests.support.servers import newest_postgres
from tests.support.waiting import until

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Self

    from tests.integration.conftest import Rows

pytestmark = newest_postgres

USERS = ("a1", "a2", "B1", "B2")
EMPTY = ["DELETE FROM user_entitlements"]
# A different damage for each stock keeping unit, while its entitlements change; s5 is not damaged.
BEHIND = [
    "DELETE FROM user_entitlements WHERE stock_keeping_unit = 's0'",
    "UPDATE user_entitlements SET version = 1, status = 'ACTIVE' WHERE stock_keeping_unit = 's1'",
]
DAMAGED = [
    *BEHIND,
    "UPDATE user_entitlements SET changed_at = now() WHERE stock_keeping_unit = 's2'",
    "UPDATE user_entitlements SET version = version + 3 WHERE stock_keeping_unit = 's3'",
    "UPDATE user_entitlements SET version = version + 1000000 WHERE stock_keeping_unit = 's4'",
    "INSERT INTO user_entitlements SELECT DISTINCT user_id, 'never', 'ACTIVE', 1, now() FROM user_entitlements",
    # These entitlements are granted for the first time while the rebuild runs.
    """INSERT INTO user_entitlements SELECT DISTINCT user_id, 'later', 'ACTIVE', 100, now() FROM user_entitlements
       ON CONFLICT DO NOTHING""",
]


def relay(environ: dict[str, str], budget: Budget) -> None:
    """Publish events from the outbox to the stream."""
    runtime = RelayRuntime.build(environ)
    try:
        runtime.run(budget)
    finally:
        runtime.close()


def bridge(environ: dict[str, str], budget: Budget) -> None:
    """Record and project events from the stream."""
    runtime = BridgeRuntime.build(environ)
    try:
        runtime.run(budget)
    finally:
        runtime.close()


class Traffic:
    """Two writers, a relay and a bridge, each in a thread with its own connections."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._writers: list[Future[int]] = []
        self.skus = [f"s{number}" for number in range(6)]

    def __enter__(self) -> Self:
        """Start all threads."""
        budget = Budget(1.0, clock=lambda: 2.0 if self._is_over.is_set() else 0.0)
        self._writers = [self._pool.submit(self._write, users) for users in (USERS[:2], USERS[2:])]
        self._workers = [self._pool.submit(run, self._environ, budget) for run in (relay, bridge)]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all threads."""
        self._is_over.set()
        self._pool.shutdown()

    def stop_and_drain(self) -> int:
        """Stop writing, wait until every event is projected, and return the number of changes."""
        self._is_over.set()
        changes = sum(writer.result(timeout=30) for writer in self._writers)
        for worker in self._workers:
            worker.result(timeout=30)
        for run in (relay, bridge):
            run(self._environ, Budget(time.monotonic() + 30, until_idle=True))
        return changes

    def _write(self, users: tuple[str, ...]) -> int:
        """Grant and revoke each entitlement in turn."""
        changes = 0
        with Client(self._environ["DATABASE_URL"]) as client:
            for turn in count():
                change = client.revoke if turn % 2 else client.grant
                for sku in tuple(self.skus):
                    for user in users:
                        response = change(f"{user}-{sku}-{turn}", user_id=user, stock_keeping_unit=sku)
                        changes += response.status == 200
                    if self._is_over.is_set():
                        return changes
        raise AssertionError


def apply_damage(damage: list[str], rows: Rows) -> None:
    """Damage the read model while no other transaction has locked its rows, so that this cannot deadlock."""
    with rows.transaction():
        rows.execute("LOCK TABLE user_entitlements IN SHARE ROW EXCLUSIVE MODE")
        for statement in damage:
            rows.execute(statement)


def rebuild(environ: dict[str, str], source: str) -> dict[str, Any]:
    """Rebuild as the worker does."""
    with Operations(environ) as operations:
        return operations.execute(REBUILD, source=source)


@pytest.mark.parametrize(
    ("source", "damage"),
    [
        pytest.param("record", EMPTY, id="record, empty"),
        pytest.param("record", DAMAGED, id="record, damaged"),
        pytest.param("stream", EMPTY, id="stream, empty"),
        pytest.param("stream", BEHIND, id="stream, behind"),
    ],
)
def test_rebuild_during_traffic_ends_equal_to_system_of_record(
    environ: dict[str, str], rows: Rows, source: str, damage: list[str]
) -> None:
    """P2: repeatedly, with two concurrent rebuilds; no writer is blocked, and at the end no row differs."""
    with Traffic(environ) as traffic:
        until("all entitlements are projected", lambda: len(read_model_rows(rows)) == len(USERS) * 6)
        for _ in range(3):
            apply_damage(damage, rows)
            if "later" not in traffic.skus:
                traffic.skus.append("later")
            reports = run_concurrently(2, lambda _: rebuild(environ, source))
            assert all(report["complete"] for report in reports)
        before = record_rows(rows)
        until("entitlements still change", lambda: record_rows(rows) != before)
        until("the new entitlements are granted", lambda: len(record_rows(rows)) == len(USERS) * 7)
        changes = traffic.stop_and_drain()
    assert sum(row.version for row in record_rows(rows)) == changes
    assert read_model_rows(rows) == record_rows(rows)
    assert count_deadlocks(rows) == 0


def test_both_sources_give_the_same_read_model(environ: dict[str, str], rows: Rows) -> None:
    """P2: from an empty table, one after the other, over the same history."""
    with Traffic(environ) as traffic:
        until("all entitlements are projected", lambda: len(read_model_rows(rows)) == len(USERS) * 6)
        traffic.stop_and_drain()
    projected = read_model_rows(rows)
    results = []
    for source in ("record", "stream"):
        rows.execute("DELETE FROM user_entitlements")
        assert rebuild(environ, source)["complete"]
        results.append(read_model_rows(rows))
    assert results == [projected, projected]
    assert projected == record_rows(rows)
