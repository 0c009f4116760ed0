"""O8, Q2, Q3: two concurrent transactions on the same aggregates, in each order, step by step.

Each test proves the same: both commit, and then the head of each aggregate is ready unless it is FAILED.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from grantwire.outbox import store
from grantwire.outbox.store import discard, promote_stuck, redrive
from grantwire.workers.leases import Completion, Failure, RetryDecision
from tests.support.concurrency import meet
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
    meet(first, second, rows, lambda tx: store.complete(tx, token, [Completion(events[0].event_id, 1)]))
    _assert_ready(rows, 2)


def test_enqueue_during_a_complete_makes_the_new_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """O8: the enqueue waits for the complete of version 1 and enqueues version 2 as the head."""
    token, events = _claim_run(second, 1)
    store.complete(first, token, [Completion(events[0].event_id, 1)])
    meet(first, second, rows, lambda tx: enqueue(tx, "u0/item1", 2))
    _assert_ready(rows, 2)


def test_discard_during_an_enqueue_makes_the_new_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q3: the discard waits for the enqueue and makes the successor ready."""
    token, events = _claim_run(second, 1)
    store.fail(second, token, [Failure(events[0].event_id, RetryDecision(10, None), "no")])
    enqueue(first, "u0/item1", 2)
    meet(first, second, rows, lambda tx: discard(tx, [UUID(events[0].event_id)]))
    _assert_ready(rows, 2)


def test_redrive_during_a_complete_makes_its_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the complete of version 1 sees version 2 as FAILED; the redrive waits for it and makes version 2 ready."""
    token, events = _claim_with_failed_second(second)
    store.complete(first, token, [Completion(events[0].event_id, 1)])
    meet(first, second, rows, lambda tx: redrive(tx, [UUID(events[1].event_id)]))
    _assert_ready(rows, 2)


def test_complete_during_a_redrive_makes_the_event_ready(first: Connection, second: Connection, rows: Rows) -> None:
    """Q2: the redrive sees version 1 as open; the complete waits for it and makes version 2 ready."""
    token, events = _claim_with_failed_second(second)
    redrive(first, [UUID(events[1].event_id)])
    meet(first, second, rows, lambda tx: store.complete(tx, token, [Completion(events[0].event_id, 1)]))
    _assert_ready(rows, 2)
    assert promote_stuck(second) == 0


_INSERT = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready, status, locked_by,
                           locked_at, lease_until)
SELECT id, 'EntitlementGranted', key, 1, '{}', NOT %(failed)s, CASE WHEN %(failed)s THEN 'FAILED' ELSE 'IN_FLIGHT' END,
       'test', now(), now() + interval '1 hour'
  FROM unnest(%(ids)s::uuid[], %(keys)s::text[]) AS e (id, key)
"""
_INSERT_OTHERS = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready)
SELECT gen_random_uuid(), 'EntitlementGranted', 'other' || n, 1, '{}', true FROM generate_series(1, 5000) n
"""
_CLOSE: dict[str, Callable[[Connection, list[UUID]], object]] = {
    "complete": lambda tx, ids: store.complete(tx, "test", [Completion(str(event_id), 1) for event_id in ids]),
    "discard": discard,
}


@pytest.mark.parametrize("close", _CLOSE)
def test_closing_functions_lock_events_in_the_order_of_aggregates(
    first: Connection, second: Connection, rows: Rows, close: str
) -> None:
    """O8: as a transaction that enqueues for several aggregates, so that neither deadlocks with the other.

    The ids of the events, and their places in the table, are in the opposite order. The other events are so many that
    the two are found by their ids.
    """
    ids = [UUID(int=1), UUID(int=2)]
    rows.execute(_INSERT, {"ids": ids, "keys": ["u1/item1", "u0/item1"], "failed": close != "complete"})
    rows.execute(_INSERT_OTHERS)
    rows.execute("ANALYZE outbox_events")
    enqueue(first, "u0/item1", 2)
    meet(first, second, rows, lambda tx: _CLOSE[close](tx, ids), lambda: enqueue(first, "u1/item1", 2))
    ready = rows.execute(
        "SELECT aggregate_key, aggregate_version FROM outbox_events WHERE ready AND aggregate_version > 1 ORDER BY 1"
    ).fetchall()
    assert [tuple(row.values()) for row in ready] == [("u0/item1", 2), ("u1/item1", 2)]
