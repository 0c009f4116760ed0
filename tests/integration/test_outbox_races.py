"""O8, Q2, Q3: two concurrent transactions on one aggregate, in each order, step by step.

Each test proves the same: after both commit, the head of the aggregate is ready unless it is FAILED.
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
from grantwire.workers.leases import Completion, Failure, RetryDecision
from tests.support.waiting import until
from tests.support.workers.relay_support import enqueue, enqueue_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from tests.integration.conftest import Rows


@pytest.fixture
def first(database_url: str) -> Iterator[Connection]:
    """The transaction that begins first, and commits when the second waits for it."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.fixture
def second(database_url: str) -> Iterator[Connection]:
    """The connection that acts while the first transaction is open."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def _run_concurrently(
    first: Connection, second: Connection, rows: Rows, action: Callable[[Connection], object]
) -> None:
    """Run `action` on `second`; commit `first` when the action has ended or waits for a lock."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(action, second)
        pid = second.info.backend_pid
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        until("the action ends or waits", lambda: running.done() or bool(rows.execute(waiting, (pid,)).fetchall()))
        first.commit()
        running.result(timeout=10)


def _claim_run(tx: Connection, length: int) -> tuple[str, list[store.ClaimedEvent]]:
    enqueue_many(tx, aggregates=1, each=length)
    return "test", store.claim(tx, "test", limit=length, lease=timedelta(seconds=30))


def _claim_with_failed_second(tx: Connection) -> tuple[str, list[store.ClaimedEvent]]:
    """Claim versions 1 and 2, and mark version 2 FAILED while version 1 is in flight."""
    token, events = _claim_run(tx, 2)
    store.fail(tx, token, [Failure(events[1].event_id, RetryDecision(10, None), "no")])
    return token, events


def _assert_ready(rows: Rows, version: int) -> None:
    ready = rows.execute("SELECT ready FROM outbox_events WHERE aggregate_version = %s", (version,)).fetchall()
    assert ready == [{"ready": True}]


def test_complete_during_an_enqueue_makes_the_new_event_ready(
    first: Connection, second: Connection, rows: Rows
) -> None:
    """O8: the enqueue sees version 1 as open; the complete waits for the enqueue and makes version 2 ready."""
    token, events = _claim_run(second, 1)
    enqueue(first, "u0/item1", 2)
    _run_concurrently(first, second, rows, lambda tx: store.complete(tx, token, [Completion(events[0].event_id, 1)]))
    _assert_ready(rows, 2)


def test_enqueue_during_a_complete_makes_the_new_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """O8: the enqueue waits for the complete of version 1 and enqueues version 2 as the head."""
    token, events = _claim_run(second, 1)
    store.complete(first, token, [Completion(events[0].event_id, 1)])
    _run_concurrently(first, second, rows, lambda tx: enqueue(tx, "u0/item1", 2))
    _assert_ready(rows, 2)


def test_discard_during_an_enqueue_makes_the_new_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q3: the discard waits for the enqueue and makes the successor ready."""
    token, events = _claim_run(second, 1)
    store.fail(second, token, [Failure(events[0].event_id, RetryDecision(10, None), "no")])
    enqueue(first, "u0/item1", 2)
    _run_concurrently(first, second, rows, lambda tx: discard(tx, [UUID(events[0].event_id)]))
    _assert_ready(rows, 2)


def test_redrive_during_a_complete_makes_its_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the complete of version 1 sees version 2 as FAILED; the redrive waits for it and makes version 2 ready."""
    token, events = _claim_with_failed_second(second)
    store.complete(first, token, [Completion(events[0].event_id, 1)])
    _run_concurrently(first, second, rows, lambda tx: redrive(tx, [UUID(events[1].event_id)]))
    _assert_ready(rows, 2)


def test_complete_during_a_redrive_makes_the_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the redrive sees version 1 as open; the complete waits for it and makes version 2 ready."""
    token, events = _claim_with_failed_second(second)
    redrive(first, [UUID(events[1].event_id)])
    _run_concurrently(first, second, rows, lambda tx: store.complete(tx, token, [Completion(events[0].event_id, 1)]))
    _assert_ready(rows, 2)
    assert promote_stuck(second) == 0
