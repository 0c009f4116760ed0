"""O8, Q2, Q3: two transactions that meet at one aggregate, each order of them, step by step. Neither misses the other.

What is at stake each time: an event that is first in its aggregate, and not FAILED, must end up ready.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from grantwire.outbox import store
from grantwire.outbox.store import discard, promote_stuck, redrive
from grantwire.workers.leases import Failure, RetryDecision
from tests.support.workers.relay_support import enqueue, enqueue_many, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from tests.integration.conftest import Rows


@pytest.fixture
def first(database_url: str) -> Iterator[Connection]:
    """Begins, and commits when the second waits for it."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.fixture
def second(database_url: str) -> Iterator[Connection]:
    """Comes while the first has not committed."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def _meet(first: Connection, second: Connection, rows: Rows, late: Callable[[Connection], object]) -> None:
    """Let `late` run into what `first` has done, wait until it stands or is through, then commit the first."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(late, second)
        pid = second.info.backend_pid
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        until("it waits or is through", lambda: running.done() or bool(rows.execute(waiting, (pid,)).fetchall()))
        first.commit()
        running.result(timeout=10)


def _claimed(tx: Connection, versions: int) -> tuple[str, list[store.ClaimedEvent]]:
    enqueue_many(tx, aggregates=1, each=versions)
    return "test", store.claim(tx, "test", limit=versions, lease=timedelta(seconds=30))


def _with_failed_second(tx: Connection) -> tuple[str, list[store.ClaimedEvent]]:
    """Version 1 in flight, version 2 FAILED before the relay wrote down that 1 was published."""
    token, events = _claimed(tx, 2)
    store.fail(tx, token, [Failure(events[1].event_id, RetryDecision(10, None), "no")])
    return token, events


def _assert_flows(rows: Rows, version: int) -> None:
    found = rows.execute("SELECT ready FROM outbox_events WHERE aggregate_version = %s", (version,)).fetchall()
    assert found == [{"ready": True}]


def test_a_complete_that_meets_an_enqueue_sees_its_event(first: Connection, second: Connection, rows: Rows) -> None:
    """The enqueue saw version 1 open; the complete waits for it, and lets version 2 follow."""
    token, events = _claimed(second, 1)
    enqueue(first, "u0/item1", 2)
    _meet(first, second, rows, lambda tx: store.complete(tx, token, [events[0].event_id]))
    _assert_flows(rows, 2)


def test_an_enqueue_that_meets_a_complete_is_the_head(first: Connection, second: Connection, rows: Rows) -> None:
    """The enqueue waits for version 1, and finds it closed."""
    token, events = _claimed(second, 1)
    store.complete(first, token, [events[0].event_id])
    _meet(first, second, rows, lambda tx: enqueue(tx, "u0/item1", 2))
    _assert_flows(rows, 2)


def test_a_discard_that_meets_an_enqueue_sees_its_event(first: Connection, second: Connection, rows: Rows) -> None:
    """Q3: the successor of a discarded event follows, however late it came."""
    token, events = _claimed(second, 1)
    store.fail(second, token, [Failure(events[0].event_id, RetryDecision(10, None), "no")])
    enqueue(first, "u0/item1", 2)
    _meet(first, second, rows, lambda tx: discard(tx, [UUID(events[0].event_id)]))
    _assert_flows(rows, 2)


def test_a_redrive_that_meets_a_complete_is_the_head(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the complete of version 1 still saw version 2 FAILED; the redrive waits, and makes it ready itself."""
    token, events = _with_failed_second(second)
    store.complete(first, token, [events[0].event_id])
    _meet(first, second, rows, lambda tx: redrive(tx, [UUID(events[1].event_id)]))
    _assert_flows(rows, 2)


def test_a_complete_that_meets_a_redrive_sees_it(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the redrive still saw version 1 open; the complete waits, and makes version 2 ready."""
    token, events = _with_failed_second(second)
    redrive(first, [UUID(events[1].event_id)])
    _meet(first, second, rows, lambda tx: store.complete(tx, token, [events[0].event_id]))
    _assert_flows(rows, 2)
    assert promote_stuck(second) == 0
