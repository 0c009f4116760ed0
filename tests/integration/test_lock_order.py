"""W7: every change and every worker takes its locks in one order, so that no two of them can deadlock.

The order is: keys by lock key, entitlements by lock key, events by aggregate and version (ADR 0041). Each test holds
one lock, lets one of them run until it waits for it, and proves that it holds none of the later ones. Transactions
that wait in one order only never wait for each other in a circle, so this covers every pair of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from grantwire.outbox import store
from grantwire.outbox.confirmation.store import PutBack, put_back
from grantwire.workers.leases import Completion, Failure, RetryDecision
from tests.integration.test_batch_concurrency import HOLD_ROW, holding, results
from tests.support.client import Client, item
from tests.support.times import in_hours, pass_time, run_expiry
from tests.support.waiting import until
from tests.support.workers.relay_support import enqueue, enqueue_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from grantwire.database import Connection
    from tests.integration.conftest import Rows

    Take = Callable[[Connection, list[UUID]], object]

PATIENT = {"IDEMPOTENCY_LOCK_WAIT": "15s", "DATABASE_STATEMENT_TIMEOUT": "40s"}
# Sorted by aggregate. Tests insert and name them in another order.
USERS = ("a", "b", "c")
OTHER_ORDER = ("c", "a", "b")
TOKEN = "test"
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)

# Both end in an event of the entitlement (a, item1).
REVOKE: LiteralString = """
SELECT outcome FROM change_entitlement(
  'POST /v1/entitlements/revokes', 'r', 'h', '1 hour', 1000, '0', '0', jsonb_populate_record(
         NULL::entitlement_change, jsonb_build_object(
    'operation_id', gen_random_uuid(), 'operation', 'REVOKE', 'user_id', 'a', 'stock_keeping_unit', 'item1',
    'caller', 'tests', 'trace_id', '1-0-0')))
"""
EXPIRE: LiteralString = """
SELECT CASE expired WHEN 1 THEN 'APPLIED' END FROM expire_due(10, '0', '0', '1-0-0', false, '{0,0,0}')
"""

HOLD_EVENT: LiteralString = (
    "SELECT FROM outbox_events WHERE aggregate_key = 'a/item1' AND aggregate_version = %s::bigint FOR UPDATE"
)
HOLD_PAIR: LiteralString = "SELECT pg_advisory_xact_lock(x'6777656e'::integer, entitlement_lock_key(%s, 'item1'))"
WAITING: LiteralString = """
SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
FREE_EVENTS: LiteralString = """
SELECT aggregate_key FROM outbox_events WHERE aggregate_key <> 'a/item1' FOR UPDATE SKIP LOCKED
"""
# A lock of the session that is released at once.
FREE_PAIR: LiteralString = """
SELECT pg_try_advisory_lock(x'6777656e'::integer, entitlement_lock_key(%(user)s, 'item1'))
   AND pg_advisory_unlock(x'6777656e'::integer, entitlement_lock_key(%(user)s, 'item1')) AS free
"""
FREE_ROWS: LiteralString = "SELECT user_id FROM entitlements WHERE user_id = ANY(%s) FOR UPDATE SKIP LOCKED"


@pytest.fixture
def session(database_url: str) -> Iterator[Connection]:
    """The connection of a worker."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def _fail(tx: Connection, ids: list[UUID]) -> None:
    assert store.fail(tx, TOKEN, [Failure(str(each), RetryDecision(10, None), "no") for each in ids]) == len(ids)


def _fail_and_discard(tx: Connection, ids: list[UUID]) -> None:
    assert len(store.discard(tx, ids)) == len(ids)


def _fail_and_redrive(tx: Connection, ids: list[UUID]) -> None:
    assert len(store.redrive(tx, ids)) == len(ids)


def _complete(tx: Connection, ids: list[UUID]) -> None:
    assert store.complete(tx, TOKEN, [Completion(str(each), 1) for each in ids]) == len(ids)


def _renew(tx: Connection, ids: list[UUID]) -> None:
    assert store.renew(tx, TOKEN, [str(each) for each in ids], lease=timedelta(seconds=30)) == len(ids)


def _release(tx: Connection, ids: list[UUID]) -> None:
    assert store.release(tx, TOKEN, [str(each) for each in ids]) == len(ids)


def _put_back(tx: Connection, ids: list[UUID]) -> None:
    patient = partial(put_back, backoff=timedelta(minutes=1), now=NOON, lock_wait=timedelta(seconds=30))
    result = patient(tx, [(str(each), 1) for each in ids], cause="LOST", oldest=NOON - timedelta(days=365))
    assert result == PutBack(len(ids), 0)


def _promote_stuck(tx: Connection, ids: list[UUID]) -> None:
    assert store.promote_stuck(tx) == len(ids)


def _claimed(session: Connection, rows: Rows) -> list[UUID]:
    """Enqueue two events for each aggregate, claim the first ones, and return their ids in another order."""
    for user in OTHER_ORDER:
        for version in (1, 2):
            enqueue(rows, f"{user}/item1", version)
    claimed = store.claim(session, TOKEN, limit=len(USERS), lease=timedelta(seconds=30))
    by_key = {event.aggregate_key: event.event_id for event in claimed}
    ids = rows.execute("SELECT event_id FROM outbox_events WHERE event_id = ANY(%s)", (list(by_key.values()),))
    found = {str(row["event_id"]): row["event_id"] for row in ids}
    return [found[by_key[f"{user}/item1"]] for user in OTHER_ORDER]


def _assert_holds_no_later_event(rows: Rows, running: Future[Any]) -> None:
    """Assert that the running transaction waits, and has locked no event of a later aggregate."""
    until("it ends or waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
    assert not running.done(), running.result()
    free = [row["aggregate_key"] for row in rows.execute(FREE_EVENTS)]
    total = rows.execute("SELECT FROM outbox_events WHERE aggregate_key <> 'a/item1'").fetchall()
    assert len(free) == len(total)


@pytest.mark.parametrize(
    ("take", "version", "status"),
    [
        (_complete, 1, "IN_FLIGHT"),
        (_complete, 2, "IN_FLIGHT"),
        (_renew, 1, "IN_FLIGHT"),
        (_fail, 1, "IN_FLIGHT"),
        (_release, 1, "IN_FLIGHT"),
        (_fail_and_discard, 1, "FAILED"),
        (_fail_and_discard, 2, "FAILED"),
        (_fail_and_redrive, 1, "FAILED"),
        (_promote_stuck, 1, "stuck"),
        (_put_back, 1, "PUBLISHED"),
        (_put_back, 2, "PUBLISHED"),
    ],
    ids=[
        "complete an event",
        "complete and promote its successor",
        "renew",
        "fail",
        "release",
        "discard an event",
        "discard and promote its successor",
        "redrive",
        "promote stuck",
        "put an event back",
        "put back before an open event",
    ],
)
def test_workers_lock_events_in_order(
    session: Connection, owner_url: str, rows: Rows, take: Take, version: int, status: str
) -> None:
    """W7: what closes events locks them, and those that it promotes, by aggregate, whatever the order of their ids."""
    ids = _claimed(session, rows)
    if status == "FAILED":
        _fail(session, ids)
        # With many events, PostgreSQL looks for these by their ids, whose order is another one.
        enqueue_many(rows, aggregates=300, each=1)
        rows.execute("ANALYZE outbox_events")
    elif status == "PUBLISHED":
        _complete(session, ids)
        rows.execute("UPDATE outbox_events SET created_at = %s", (NOON,))
    elif status == "stuck":
        rows.execute("UPDATE outbox_events SET ready = false")
    with ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_EVENT, (str(version),)):
            running = pool.submit(take, session, ids)
            _assert_holds_no_later_event(rows, running)
        running.result(timeout=30)


def _granted(client: Client, rows: Rows) -> None:
    """Grant entitlements with a start, an end, and events that no relay has published."""
    for user in OTHER_ORDER:
        client.grant(f"g-{user}", user_id=user, starts_at=in_hours(1), expires_at=in_hours(2))
    for position, user in enumerate(OTHER_ORDER):
        client.revoke(f"r-{user}", user_id=user)
        ends = in_hours(3 + position / 60)
        client.grant(f"g2-{user}", user_id=user, starts_at=in_hours(1), expires_at=ends)
    assert len(rows.execute("SELECT FROM outbox_events").fetchall()) == 9


def test_batch_locks_events_in_order(database_url: str, owner_url: str, rows: Rows) -> None:
    """W7: the last event of each entitlement, before the items, which follow in another order."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        _granted(client, rows)
        with holding(owner_url, HOLD_EVENT, ("3",)):
            running = pool.submit(client.batch, *(item(f"k-{user}", "revoke", user_id=user) for user in OTHER_ORDER))
            _assert_holds_no_later_event(rows, running)
        assert [each["status_code"] for each in results(running.result(timeout=30))] == [200] * 3


def test_expiry_locks_events_in_order(database_url: str, owner_url: str, rows: Rows) -> None:
    """W7: the last event of each entitlement, before it records starts and ends in the order of their times."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        _granted(client, rows)
        pass_time(rows, 9)
        with holding(owner_url, HOLD_EVENT, ("3",)):
            running = pool.submit(run_expiry, database_url, **PATIENT)
            _assert_holds_no_later_event(rows, running)
        recorded = running.result(timeout=30)
    assert (recorded["started"], recorded["expired"]) == (3, 3)


@pytest.mark.parametrize("exist", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("held", [0, 1, 2])
def test_batch_locks_entitlements_in_order(
    database_url: str, owner_url: str, rows: Rows, held: int, *, exist: bool
) -> None:
    """W7: all of them, whether they exist or not, before any event, in whatever order the items follow."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        if exist:
            _granted(client, rows)
        keys = {
            user: rows.execute("SELECT entitlement_lock_key(%s, 'item1') AS lock_key", (user,)).fetchall()[0][
                "lock_key"
            ]
            for user in USERS
        }
        users = sorted(USERS, key=keys.__getitem__)
        operation = "revoke" if exist else "grant"
        with holding(owner_url, HOLD_ROW if exist else HOLD_PAIR, (users[held],)):
            sent = [item(f"k-{user}", operation, user_id=user) for user in reversed(users)]
            running = pool.submit(client.batch, *sent)
            until("it ends or waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            assert not running.done()
            later = users[held + 1 :]
            for user in later:
                assert rows.execute(FREE_PAIR, {"user": user}).fetchall() == [{"free": True}]
            assert len(rows.execute(FREE_ROWS, (later,)).fetchall()) == (len(later) if exist else 0)
            events = rows.execute("SELECT FROM outbox_events").fetchall()
            assert len(rows.execute("SELECT FROM outbox_events FOR UPDATE SKIP LOCKED").fetchall()) == len(events)
        assert [each["status_code"] for each in results(running.result(timeout=30))] == [200] * 3


def test_single_change_takes_the_lock_of_a_batch(database_url: str, owner_url: str, rows: Rows) -> None:
    """W7: a grant of a new entitlement waits for the batch that will grant it, before it inserts anything."""
    with Client(database_url, **PATIENT) as client, ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_PAIR, ("a",)):
            running = pool.submit(client.grant, "k1", user_id="a")
            until("it waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            assert not running.done()
        assert running.result(timeout=30).status == 200


@pytest.mark.parametrize("change", [REVOKE, EXPIRE], ids=["a revoke", "expiry"])
def test_put_back_waits_for_a_change_of_the_entitlement(
    session: Connection, database_url: str, rows: Rows, change: LiteralString
) -> None:
    """W1, W7, O8: an event that is not committed yet is seen, so that the lowest version is the only ready one."""
    with Client(database_url, **PATIENT) as client:
        client.grant("g", user_id="a", expires_at=in_hours(1))
    (event,) = store.claim(session, TOKEN, limit=1, lease=timedelta(seconds=30))
    store.complete(session, TOKEN, [Completion(event.event_id, 1)])
    if change == EXPIRE:
        pass_time(rows, 2)
    with psycopg.connect(database_url) as other, ThreadPoolExecutor(1) as pool:
        assert other.execute(change).fetchall() == [("APPLIED",)]
        running = pool.submit(_put_back, session, [UUID(event.event_id)])
        until("it ends or waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
        other.commit()
        running.result(timeout=30)
    events = rows.execute("SELECT aggregate_version, ready FROM outbox_events ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in events] == [(1, True), (2, False)]


def _redrive_lost(tx: Connection, ids: list[UUID]) -> None:
    assert set(store.redrive(tx, ids)) == set(ids)


def _published(session: Connection, rows: Rows) -> list[UUID]:
    """Publish an event of each entitlement, of which the stream then loses the message, and return their ids."""
    ids = [enqueue(rows, f"{user}/item1", 1, user_id=user) for user in OTHER_ORDER]
    claimed = store.claim(session, TOKEN, limit=len(USERS), lease=timedelta(seconds=30))
    store.complete(session, TOKEN, [Completion(event.event_id, 1) for event in claimed])
    rows.execute("UPDATE outbox_events SET created_at = %s", (NOON,))
    rows.execute(
        "INSERT INTO outbox_unconfirmed (event_id, state, changed_at, found_at)"
        " SELECT event_id, 'TOO_OLD', created_at, now() FROM outbox_events"
    )
    return ids


@pytest.mark.parametrize("take", [_put_back, _redrive_lost], ids=["put back", "redrive"])
def test_entitlements_of_lost_events_are_locked_before_any_event(
    session: Connection, owner_url: str, rows: Rows, take: Take
) -> None:
    """W1, W7: in the order of their lock keys, as a batch of changes does."""
    ids = _published(session, rows)
    for user in OTHER_ORDER:
        enqueue(rows, f"{user}/item1", 2, user_id=user)
    keys = rows.execute("SELECT u, entitlement_lock_key(u, 'item1') FROM unnest(%s::text[]) u ORDER BY 2", ([*USERS],))
    users = [row["u"] for row in keys.fetchall()]
    with ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_PAIR, (users[1],)):
            running = pool.submit(take, session, ids)
            until("it ends or waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
            assert not running.done(), running.result()
            free = [rows.execute(FREE_PAIR, {"user": user}).fetchall()[0]["free"] for user in (users[0], users[2])]
            assert free == [False, True]
            assert len(rows.execute("SELECT FROM outbox_events FOR UPDATE SKIP LOCKED").fetchall()) == 6
        running.result(timeout=30)
    ready = rows.execute("SELECT aggregate_version FROM outbox_events WHERE ready").fetchall()
    assert [row["aggregate_version"] for row in ready] == [1, 1, 1]


@pytest.mark.parametrize("version", ["1", "2"], ids=["lost event", "open event behind it"])
def test_redrive_locks_lost_and_failed_events_in_order(
    session: Connection, owner_url: str, rows: Rows, version: str
) -> None:
    """W7, Q2: in one pass, although one kind is FAILED and the other one published."""
    ids = _published(session, rows)
    ids += [enqueue(rows, f"{user}/item1", 2, user_id=user) for user in OTHER_ORDER]
    rows.execute("DELETE FROM outbox_unconfirmed WHERE event_id = %s", (ids[0],))
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false WHERE event_id = %s", (ids[3],))
    with ThreadPoolExecutor(1) as pool:
        with holding(owner_url, HOLD_EVENT, (version,)):
            running = pool.submit(store.redrive, session, ids)
            _assert_holds_no_later_event(rows, running)
        assert set(running.result(timeout=30)) == {ids[1], ids[2], ids[3]}


@pytest.mark.parametrize("act", [store.redrive, store.discard], ids=["redrive", "discard"])
def test_action_on_a_failed_event_sees_an_earlier_one_put_back(
    session: Connection, database_url: str, rows: Rows, act: Callable[[Connection, list[UUID]], list[UUID]]
) -> None:
    """W1, O8: although a relay publishes the earlier one before the action commits, no event waits for ever."""
    first, failed, _ = (enqueue(rows, "a/item1", version, user_id="a") for version in (1, 2, 3))
    (event,) = store.claim(session, TOKEN, limit=1, lease=timedelta(seconds=30))
    store.complete(session, TOKEN, [Completion(event.event_id, 1)])
    rows.execute("UPDATE outbox_events SET status = 'FAILED', ready = false WHERE event_id = %s", (failed,))
    rows.execute("UPDATE outbox_events SET created_at = %s", (NOON,))
    with (
        psycopg.connect(database_url) as other,
        psycopg.connect(database_url) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        _put_back(other, [first])
        running = pool.submit(act, operator, [failed])
        until("it ends or waits", lambda: running.done() or bool(rows.execute(WAITING).fetchall()))
        other.commit()
        assert running.result(timeout=30) == [failed]
        _publish_all(session)
        operator.commit()
    _publish_all(session)
    assert (
        rows.execute("SELECT FROM outbox_events WHERE published_at IS NULL AND discarded_at IS NULL").fetchall() == []
    )


def _publish_all(session: Connection) -> None:
    """Publish events until none can be claimed, as a relay does."""
    while claimed := store.claim(session, TOKEN, limit=9, lease=timedelta(seconds=30)):
        store.complete(session, TOKEN, [Completion(event.event_id, 1) for event in claimed])


def test_event_that_appears_behind_a_closing_one_is_locked_in_its_turn(
    session: Connection, database_url: str, owner_url: str, rows: Rows
) -> None:
    """W7, O8: a complete that waited finds a successor that another transaction has locked, and begins again.

    It may not wait for that event while it holds later ones. In the end the event is ready.
    """
    for user in ("b", "a"):
        enqueue(rows, f"{user}/item1", 1)
    claimed = store.claim(session, TOKEN, limit=2, lease=timedelta(seconds=30))
    completions = [Completion(event.event_id, 1) for event in claimed]
    with (
        psycopg.connect(database_url) as change,
        ThreadPoolExecutor(1) as pool,
    ):
        with holding(owner_url, HOLD_EVENT.replace("'a/item1'", "'b/item1'"), ("1",)):
            with psycopg.connect(database_url) as earlier:
                enqueue(earlier, "a/item1", 2)
                running = pool.submit(store.complete, session, TOKEN, completions)
                until("it waits for the first event", lambda: bool(rows.execute(WAITING).fetchall()))
            blocked = "SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            held_by = rows.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE '%%''b/item1''%%FOR UPDATE'")
            (holder,) = [row["pid"] for row in held_by if row["pid"] != rows.info.backend_pid]
            until("it waits for the second one", lambda: bool(rows.execute(blocked, (holder,)).fetchall()))
            enqueue(change, "a/item1", 3)
        until("it waits for the successor", lambda: bool(rows.execute(blocked, (change.info.backend_pid,)).fetchall()))
        assert len(rows.execute(FREE_EVENTS).fetchall()) == 1
        enqueue(change, "b/item1", 2)
        change.commit()
        assert running.result(timeout=30) == 2
    ready = rows.execute("SELECT aggregate_key, aggregate_version FROM outbox_events WHERE ready ORDER BY 1")
    assert [tuple(row.values()) for row in ready] == [("a/item1", 2), ("b/item1", 2)]
