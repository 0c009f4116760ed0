"""D1, D2: claim and lease, fence, attempts and backoff, dead letters; with a sender that does what the test says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.commands import DeadLetterCommand, Filter
from grantwire.dead_letters.listing import list_open
from grantwire.errors import LeaseLostError, RejectedError, RetryableError
from grantwire.notifications import discard_dead_letters, redrive, store
from grantwire.notifications.delivery import Delivery
from grantwire.notifications.store import Notification
from grantwire.settings import load
from grantwire.workers.budget import Budget
from grantwire.workers.leases import Failure, Lease, LeaseSettings, RetryDecision
from grantwire.workers.listener import Listener
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from grantwire.database import Connection
    from tests.integration.conftest import Rows

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)


class Receiver:
    """A sender that does what the test says and remembers what it was given."""

    def __init__(self, answer: Callable[[Notification], None] = lambda _: None, concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self.got: list[UUID] = []
        self._answer = answer

    def send(self, notification: Notification) -> None:
        """Take it, or do what the test says."""
        self.got.append(notification.notification_id)
        self._answer(notification)


@pytest.fixture
def tx(database_url: str) -> Iterator[Connection]:
    """A worker's connection."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def add(rows: Rows, count: int = 1, *, at: datetime = NOON) -> list[UUID]:
    """Notifications that fall due one millisecond after the other."""
    made = rows.execute(
        """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   next_retry_at, created_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u_123', 'item' || n, 1,
               jsonb_build_object('event_id', gen_random_uuid(), 'event_type', 'EntitlementGranted', 'version', 1,
                                  'occurred_at', %(at)s, 'user_id', 'u_123', 'stock_keeping_unit', 'item' || n,
                                  'source', 'purchase', 'source_id', 'p_456'),
               %(at)s + n * interval '1 ms', %(at)s + n * interval '1 ms'
          FROM generate_series(1, %(count)s) n
        RETURNING notification_id, next_retry_at""",
        {"at": at - timedelta(milliseconds=count), "count": count},
    ).fetchall()
    return [row["notification_id"] for row in sorted(made, key=lambda row: row["next_retry_at"])]


def deliver(
    database_url: str, receiver: Receiver, *, now: datetime = NOON, budget: Budget | None = None, **settings: str
) -> dict[str, int]:
    """Deliver at a given time, until there is nothing due."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    leases = load(LeaseSettings, settings)
    delivery = Delivery(
        database, receiver, Listener(None, "notifications"), leases, "test", now=lambda: now, rand=lambda: 0.5
    )
    try:
        return run_worker(delivery, budget)
    finally:
        delivery.close()
        database.close()


def look(rows: Rows) -> list[dict[str, Any]]:
    """Every notification, in order."""
    return rows.execute("SELECT * FROM notifications ORDER BY created_at").fetchall()


def test_what_is_due_longest_goes_first_and_once(database_url: str, rows: Rows) -> None:
    """D1: PENDING, PROCESSING, SENT; in batches; what is not due yet stays."""
    ids = add(rows, 25)
    (later,) = add(rows, at=NOON + timedelta(seconds=1))
    receiver = Receiver(lambda n: _expect_processing(rows, n))
    assert deliver(database_url, receiver, BATCH_SIZE="10")["sent"] == 25
    assert set(receiver.got[:10]) == set(ids[:10])
    assert sorted(receiver.got) == sorted(ids)
    found = look(rows)
    assert [row["status"] for row in found] == ["SENT"] * 25 + ["PENDING"]
    assert found[0]["sent_at"] == NOON
    assert found[0]["next_retry_at"] is found[0]["locked_by"] is found[0]["lease_until"] is None
    assert found[-1]["notification_id"] == later


def _expect_processing(rows: Rows, notification: Notification) -> None:
    (row,) = rows.execute(
        "SELECT * FROM notifications WHERE notification_id = %s", (notification.notification_id,)
    ).fetchall()
    assert (row["status"], row["lease_until"]) == ("PROCESSING", NOON + LEASE)
    assert row["locked_by"].startswith("test/")


def test_four_workers_send_each_notification_once(database_url: str, rows: Rows) -> None:
    """D1: SKIP LOCKED, with real connections."""
    add(rows, 400)
    receivers = [Receiver() for _ in range(4)]
    results = at_once(4, lambda number: deliver(database_url, receivers[number], BATCH_SIZE="20"))
    assert sum(result["sent"] for result in results) == 400
    sent = [notification_id for receiver in receivers for notification_id in receiver.got]
    assert len(sent) == len(set(sent)) == 400


def test_a_temporary_failure_is_put_off_with_backoff(database_url: str, rows: Rows) -> None:
    """D2, O4: attempts are counted, the delay doubles, nothing is sent before its time; success clears the error."""
    add(rows)
    failing = Receiver(_temporary)
    now = NOON
    for attempt, delay in [(1, 1), (2, 2), (3, 4)]:
        assert deliver(database_url, failing, now=now) == _counts(retried=1)
        (row,) = look(rows)
        assert (row["status"], row["attempt_count"], row["last_error"]) == ("PENDING", attempt, "busy")
        assert row["next_retry_at"] == now + timedelta(seconds=delay)
        assert (row["locked_by"], row["locked_at"], row["lease_until"]) == (None, None, None)
        assert deliver(database_url, failing, now=row["next_retry_at"] - timedelta(microseconds=1)) == _counts()
        now = row["next_retry_at"]
    assert deliver(database_url, Receiver(), now=now) == _counts(sent=1)
    (row,) = look(rows)
    assert (row["status"], row["attempt_count"], row["last_error"]) == ("SENT", 3, None)


def test_the_last_attempt_leaves_a_dead_letter(database_url: str, rows: Rows) -> None:
    """D2: FAILED after max_attempts, with all that a redrive needs."""
    (notification_id,) = add(rows)
    now = NOON
    for _ in range(10):
        deliver(database_url, Receiver(_temporary), now=now)
        now += timedelta(minutes=2)
    (row,) = look(rows)
    assert (row["status"], row["attempt_count"], row["next_retry_at"]) == ("FAILED", 10, None)
    (letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    for name in ("event_id", "event_type", "user_id", "stock_keeping_unit", "version", "payload", "trace_id"):
        assert letter[name] == row[name]
    assert (letter["notification_id"], letter["attempt_count"]) == (notification_id, 10)
    assert (letter["status"], letter["last_error"], letter["closed_at"]) == ("OPEN", "busy", None)
    assert deliver(database_url, Receiver(), now=now) == _counts()


def test_a_permanent_failure_is_the_last_at_once(database_url: str, rows: Rows) -> None:
    """D2: the receiver will never take it; its neighbours are sent."""
    ids = add(rows, 3)
    receiver = Receiver(lambda n: _permanent() if n.notification_id == ids[1] else None)
    assert deliver(database_url, receiver) == _counts(sent=2, failed=1)
    assert [(row["status"], row["attempt_count"]) for row in look(rows)] == [("SENT", 0), ("FAILED", 1), ("SENT", 0)]
    assert [row["last_error"] for row in rows.execute("SELECT * FROM notification_dlq")] == ["no such thing"]


def test_an_error_that_no_sender_should_raise_is_temporary(database_url: str, rows: Rows) -> None:
    """D2: a bug in a sender costs attempts, and stops neither the worker nor the neighbours."""
    ids = add(rows, 2)
    receiver = Receiver(lambda n: 1 / 0 if n.notification_id == ids[0] else None)  # type: ignore[arg-type]
    assert deliver(database_url, receiver) == _counts(sent=1, retried=1)
    assert look(rows)[0]["last_error"] == "division by zero"


def test_failed_and_its_dead_letter_are_written_together_or_not_at_all(
    database_url: str, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """D2: the letter cannot be written, so the notification is not FAILED either; it is tried again after its lease."""
    add(rows)
    rows.execute("ALTER TABLE notification_dlq ADD CONSTRAINT closed_for_today CHECK (false) NOT VALID")
    assert deliver(database_url, Receiver(lambda _: _permanent())) == _counts()
    assert "closed_for_today" in capsys.readouterr().out
    (row,) = look(rows)
    assert (row["status"], row["attempt_count"], row["last_error"]) == ("PROCESSING", 0, None)
    assert rows.execute("SELECT FROM notification_dlq").fetchall() == []
    rows.execute("ALTER TABLE notification_dlq DROP CONSTRAINT closed_for_today")
    assert deliver(database_url, Receiver(lambda _: _permanent()), now=NOON + LEASE) == _counts(failed=1)
    assert look(rows)[0]["attempt_count"] == 2


def test_a_claim_that_ran_out_is_taken_over_and_counts_as_an_attempt(tx: Connection, rows: Rows) -> None:
    """D1, O2: not a moment before; and everything that the first claim says afterwards is ignored."""
    (notification_id,) = add(rows)
    now = NOON
    settings = load(LeaseSettings, {"LEASE": "30s"})
    first, second = (Lease[Notification](store, settings, "one", lambda: now) for _ in range(2))
    assert len(first.claim(tx)) == 1
    now = NOON + LEASE - timedelta(microseconds=1)
    assert second.claim(tx) == []
    now = NOON + LEASE
    (again,) = second.claim(tx)
    assert (again.notification_id, again.attempt_count) == (notification_id, 1)
    before = look(rows)
    with pytest.raises(LeaseLostError):
        first.renew(tx)
    with pytest.raises(LeaseLostError):
        first.release(tx, [notification_id])
    with pytest.raises(LeaseLostError):
        first.complete(tx, [notification_id])
    with pytest.raises(LeaseLostError):
        first.fail(tx, [Failure(notification_id, RetryDecision(1, None), "x")])
    assert look(rows) == before
    assert rows.execute("SELECT 1 FROM notification_dlq").fetchall() == []
    now = NOON + 2 * LEASE
    second.renew(tx)
    assert look(rows)[0]["lease_until"] == NOON + 3 * LEASE
    second.release(tx)
    (row,) = look(rows)
    assert (row["status"], row["attempt_count"], row["locked_by"]) == ("PENDING", 1, None)


def test_a_notification_that_kills_its_worker_ends_failed_without_another_try(database_url: str, rows: Rows) -> None:
    """O2: the tenth claim that ran out is the last."""
    add(rows)
    with psycopg.connect(database_url, autocommit=True) as tx:
        now = NOON
        for _ in range(10):
            store.claim(tx, f"dies/{now}", limit=1, lease=LEASE, now=now)
            now += LEASE
    receiver = Receiver()
    assert deliver(database_url, receiver, now=now) == _counts(failed=1)
    assert receiver.got == []
    assert (look(rows)[0]["status"], look(rows)[0]["attempt_count"]) == ("FAILED", 10)
    (letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert "lease ran out" in letter["last_error"]


def test_a_lease_is_renewed_while_sending_is_slow(database_url: str, rows: Rows) -> None:
    """D1: sending takes longer than the lease, and nobody else gets hold of it."""
    add(rows, 3)
    until: list[datetime] = []

    def slow(_: Notification) -> None:
        time.sleep(0.5)
        (row,) = rows.execute("SELECT max(lease_until) AS lease_until FROM notifications").fetchall()
        until.append(row["lease_until"])

    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    delivery = Delivery(
        database, Receiver(slow), Listener(None, "notifications"), load(LeaseSettings, {"LEASE": "1s"}), "test"
    )
    assert run_worker(delivery) == _counts(sent=3)
    assert until[2] > until[0]
    delivery.close()
    database.close()


def test_no_lease_is_held_when_the_budget_ends(database_url: str, rows: Rows) -> None:
    """O7: what was not begun is given back without an attempt; what was begun is finished."""
    add(rows, 5)
    over = False

    def end(_: Notification) -> None:
        nonlocal over
        over = True
        time.sleep(0.3)

    budget = Budget(1.0, clock=lambda: 2.0 if over else 0.0)
    assert deliver(database_url, Receiver(end), budget=budget) == _counts(sent=1, released=4)
    found = look(rows)
    assert sorted(row["status"] for row in found) == ["PENDING"] * 4 + ["SENT"]
    assert {row["attempt_count"] for row in found} == {0}
    assert {row["locked_by"] for row in found} == {None}


def test_an_answer_that_never_comes_is_a_failed_attempt(
    database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: the worker has to end; it holds no lease and the notification is tried again later."""
    monkeypatch.setattr("grantwire.notifications.delivery_batch._GRACE_SECONDS", 0.05)
    add(rows)
    over = released = False

    def hang(_: Notification) -> None:
        nonlocal over
        over = True
        while not released:
            time.sleep(0.01)

    budget = Budget(1.0, clock=lambda: 2.0 if over else 0.0)
    assert deliver(database_url, Receiver(hang), budget=budget) == _counts(retried=1)
    released = True
    (row,) = look(rows)
    assert (row["status"], row["attempt_count"], row["locked_by"]) == ("PENDING", 1, None)


def test_a_redriven_notification_that_fails_again_is_an_open_dead_letter_again(
    database_url: str, tx: Connection, rows: Rows
) -> None:
    """D2, Q2: one letter for each notification, however often it fails; open whenever somebody has to look."""
    (notification_id,) = add(rows)
    deliver(database_url, Receiver(lambda _: _permanent()))
    assert redrive(tx, [notification_id], now=NOON) == [notification_id]
    assert redrive(tx, [notification_id], now=NOON) == []
    (row,) = look(rows)
    assert (row["notification_id"], row["status"], row["attempt_count"]) == (notification_id, "PENDING", 0)
    (letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert (letter["status"], letter["closed_at"]) == ("REDRIVEN", NOON)

    later = NOON + timedelta(hours=1)
    assert deliver(database_url, Receiver(_temporary), now=later, MAX_ATTEMPTS="1") == _counts(failed=1)
    (letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert (letter["status"], letter["closed_at"], letter["failed_at"]) == ("OPEN", None, later)
    assert (letter["last_error"], letter["attempt_count"]) == ("busy", 1)

    redrive(tx, [notification_id], now=later)
    receiver = Receiver()
    assert deliver(database_url, receiver, now=later) == _counts(sent=1)
    assert receiver.got == [notification_id]


def test_a_redrive_brings_back_a_notification_that_was_swept(database_url: str, tx: Connection, rows: Rows) -> None:
    """Q2, Q4: the letter carries all of it; and no event gets two notifications."""
    first, second = add(rows, 2)
    deliver(database_url, Receiver(lambda _: _permanent()))
    before = {row["notification_id"]: row for row in look(rows)}
    rows.execute("DELETE FROM notifications")
    # The second one's event was seen anew after inbox and notification were swept.
    add(rows)
    rows.execute("UPDATE notifications SET event_id = %s", (before[second]["event_id"],))
    assert redrive(tx, [first, second], now=NOON) == [first]
    (row,) = rows.execute("SELECT * FROM notifications WHERE notification_id = %s", (first,)).fetchall()
    for name in ("event_id", "event_type", "user_id", "stock_keeping_unit", "version", "payload", "trace_id"):
        assert row[name] == before[first][name]
    assert (row["status"], row["attempt_count"], row["created_at"]) == ("PENDING", 0, NOON)
    assert [letter["dead_letter_id"] for letter in _open_letters(rows)] == [second]


def test_dead_letters_are_listed_and_discarded(database_url: str, tx: Connection, rows: Rows) -> None:
    """Q2, Q3: with user and error, by every filter; discarding closes for good and can be repeated."""
    ids = add(rows, 3)
    for number, notification_id in enumerate(ids):
        rows.execute(
            "UPDATE notifications SET user_id = %s, next_retry_at = %s WHERE notification_id = %s",
            (f"u_{number}", NOON + timedelta(hours=number), notification_id),
        )
    for number in range(3):
        deliver(database_url, Receiver(lambda _: _permanent()), now=NOON + timedelta(hours=number))
    assert [(letter["dead_letter_id"], letter["user_id"], letter["since"]) for letter in _open_letters(rows)] == [
        (notification_id, f"u_{number}", NOON + timedelta(hours=number)) for number, notification_id in enumerate(ids)
    ]
    assert {(letter["event_type"], letter["error"]) for letter in _open_letters(rows)} == {
        ("EntitlementGranted", "no such thing")
    }
    for chosen, expected in (
        (Filter(user_id="u_1"), [ids[1]]),
        (Filter(event_type="EntitlementGranted", error="such thing"), sorted(ids)),
        (Filter(event_type="EntitlementRevoked"), []),
        (Filter(error="busy"), []),
        (Filter(older_than=timedelta(hours=1), newer_than=timedelta(hours=3)), [ids[1]]),
    ):
        command = DeadLetterCommand(action="list", kind="notification", filter=chosen)
        listed = list_open(tx, command, NOON + timedelta(hours=3), None, 10)
        assert [letter.dead_letter_id for letter in listed] == expected
    assert discard_dead_letters(tx, ids[:2], now=NOON) == sorted(ids[:2])
    assert discard_dead_letters(tx, ids[:2], now=NOON) == []
    assert redrive(tx, ids[:2], now=NOON) == []
    assert [row["status"] for row in look(rows)] == ["FAILED"] * 3
    assert [letter["dead_letter_id"] for letter in _open_letters(rows)] == [ids[2]]


def test_those_that_wait_do_not_slow_a_claim(tx: Connection, rows: Rows) -> None:
    """D1: a receiver is down and its backlog waits; the claim reads the due ones and no more, and is HOT."""
    add(rows, 30_000, at=NOON + timedelta(hours=1))
    add(rows, 100)
    rows.execute("VACUUM ANALYZE notifications")
    before = _table_statistics(tx, rows)
    assert len(store.claim(tx, "w", limit=200, lease=LEASE, now=NOON)) == 100
    after = _table_statistics(tx, rows)
    spent = {name: after[name] - before[name] for name in after}
    # The index that finds the due ones, and the key of each of them; dead versions of rows are read too.
    assert spent["seq_tup_read"] == 0
    assert 100 <= spent["idx_tup_fetch"] <= 400
    assert spent["n_tup_upd"] == 100
    assert spent["n_tup_hot_upd"] >= 95  # the last page may be full


def _table_statistics(tx: Connection, rows: Rows) -> dict[str, int]:
    """What has been read and written so far, both sessions' share included."""
    rows.execute("SELECT pg_stat_force_next_flush()")
    tx.execute("SELECT pg_stat_force_next_flush()")
    (found,) = rows.execute(
        "SELECT seq_tup_read, idx_tup_fetch, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'notifications'"
    ).fetchall()
    return found


def test_without_a_database_nothing_is_claimed_and_the_worker_waits(rows: Rows) -> None:
    """It says so if it should only work until it is idle."""
    add(rows)
    nowhere = "postgresql://x:x@127.0.0.1:1/x"
    with pytest.raises(RetryableError):
        deliver(nowhere, Receiver())
    assert deliver(nowhere, Receiver(), budget=Budget(time.monotonic() + 0.3)) == _counts()


def test_what_was_sent_is_recorded_through_a_lost_connection(database_url: str, rows: Rows) -> None:
    """D1: the session dies between sending and recording; nothing is sent twice, no attempt is lost."""
    add(rows, 2)
    kill = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'grantwire' AND datname = current_database()"
    )

    def answer(_: Notification) -> None:
        rows.execute(kill)

    receiver = Receiver(answer)
    assert deliver(database_url, receiver) == _counts(sent=2)
    assert len(receiver.got) == 2


def _temporary(_: Notification) -> None:
    raise RetryableError("busy")


def _permanent() -> None:
    raise RejectedError("no such thing")


def _counts(**some: int) -> dict[str, int]:
    return {"sent": 0, "retried": 0, "failed": 0, "released": 0, "leases_lost": 0} | some


def _open_letters(rows: Rows) -> list[dict[str, Any]]:
    """What an operator sees, the oldest first."""
    return rows.execute("SELECT * FROM dead_letters WHERE kind = 'notification' ORDER BY since").fetchall()
