"""P2: both ways to rebuild, while rights change and their events flow; afterwards the read model equals the record."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.read_model.commands import RebuildCommand
from grantwire.runtime.bridge import BridgeRuntime
from grantwire.runtime.rebuild import RebuildRuntime
from grantwire.runtime.relay import RelayRuntime
from grantwire.workers.budget import Budget
from tests.support.client import Client
from tests.support.concurrency import at_once
from tests.support.read_model import deadlocks, model, record
from tests.support.workers.relay_support import until

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Self

    from tests.integration.conftest import Rows

USERS = ("a1", "a2", "B1", "B2")
EMPTIED = ["DELETE FROM user_entitlements"]
# To rights that are changing at this moment, another damage for each; s5 is left as it is.
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
    # Granted for the first time while the rebuild runs.
    """INSERT INTO user_entitlements SELECT DISTINCT user_id, 'later', 'ACTIVE', 100, now() FROM user_entitlements
       ON CONFLICT DO NOTHING""",
]


def relay(environ: dict[str, str], budget: Budget) -> None:
    """Carry events from the outbox to the stream."""
    runtime = RelayRuntime.build(environ)
    try:
        runtime.run(budget)
    finally:
        runtime.close()


def bridge(environ: dict[str, str], budget: Budget) -> None:
    """Carry events from the stream to inbox and read model."""
    runtime = BridgeRuntime.build(environ)
    try:
        runtime.run(budget)
    finally:
        runtime.close()


class Flow:
    """Two writers, a relay and a bridge, each in a thread with connections of its own."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._writers: list[Future[int]] = []
        self.skus = [f"s{number}" for number in range(6)]

    def __enter__(self) -> Self:
        """Begin."""
        busy = Budget(1.0, clock=lambda: 2.0 if self._over.is_set() else 0.0)
        self._writers = [self._pool.submit(self._write, users) for users in (USERS[:2], USERS[2:])]
        self._carriers = [self._pool.submit(carry, self._environ, busy) for carry in (relay, bridge)]
        return self

    def __exit__(self, *_: object) -> None:
        """End, also after a failure."""
        self._over.set()
        self._pool.shutdown()

    def quiet(self) -> int:
        """Stop writing and let everything arrive; how many changes there were."""
        self._over.set()
        changes = sum(writer.result(timeout=30) for writer in self._writers)
        for carrier in self._carriers:
            carrier.result(timeout=30)
        for carry in (relay, bridge):
            carry(self._environ, Budget(time.monotonic() + 30, until_idle=True))
        return changes

    def _write(self, users: tuple[str, ...]) -> int:
        """Grant and revoke each right in turn."""
        changes = 0
        with Client(self._environ["DATABASE_URL"]) as client:
            for turn in count():
                change = client.revoke if turn % 2 else client.grant
                for sku in tuple(self.skus):
                    for user in users:
                        reply = change(f"{user}-{sku}-{turn}", user_id=user, stock_keeping_unit=sku)
                        changes += reply.status == 200
                    if self._over.is_set():
                        return changes
        raise AssertionError


def do(damage: list[str], rows: Rows) -> None:
    """Damage the read model, when nobody has a row of it in hand: the damage itself must not close a circle."""
    with rows.transaction():
        rows.execute("LOCK TABLE user_entitlements IN SHARE ROW EXCLUSIVE MODE")
        for statement in damage:
            rows.execute(statement)


def rebuild(environ: dict[str, str], source: str) -> dict[str, Any]:
    """Rebuild as the function does."""
    runtime = RebuildRuntime.build(environ)
    try:
        return runtime.execute(RebuildCommand(source)).as_dict()
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("source", "damage"),
    [
        pytest.param("record", EMPTIED, id="record, emptied"),
        pytest.param("record", DAMAGED, id="record, damaged"),
        pytest.param("stream", EMPTIED, id="stream, emptied"),
        pytest.param("stream", BEHIND, id="stream, behind"),
    ],
)
def test_a_rebuild_in_the_midst_of_traffic_ends_as_the_record(
    environ: dict[str, str], rows: Rows, source: str, damage: list[str]
) -> None:
    """P2: again and again, two rebuilds at once; nobody stops for them, and when it is quiet no row differs."""
    with Flow(environ) as flow:
        until("all rights are projected", lambda: len(model(rows)) == len(USERS) * 6)
        for _ in range(3):
            do(damage, rows)
            if "later" not in flow.skus:
                flow.skus.append("later")
            reports = at_once(2, lambda _: rebuild(environ, source))
            assert all(report["complete"] for report in reports)
        before = record(rows)
        until("rights go on changing", lambda: record(rows) != before)
        until("the new rights are granted", lambda: len(record(rows)) == len(USERS) * 7)
        changes = flow.quiet()
    assert sum(right.version for right in record(rows)) == changes
    assert model(rows) == record(rows)
    assert deadlocks(rows) == 0


def test_both_ways_end_equal(environ: dict[str, str], rows: Rows) -> None:
    """P2: from nothing, one after the other, over the same history."""
    with Flow(environ) as flow:
        until("all rights are projected", lambda: len(model(rows)) == len(USERS) * 6)
        flow.quiet()
    projected = model(rows)
    results = []
    for source in ("record", "stream"):
        rows.execute("DELETE FROM user_entitlements")
        assert rebuild(environ, source)["complete"]
        results.append(model(rows))
    assert results == [projected, projected]
    assert projected == record(rows)
