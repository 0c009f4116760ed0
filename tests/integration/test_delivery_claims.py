"""D1, D2: claims, leases, attempts, backoff and dead letters of delivery, with a controlled sender."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.dead_letters.commands import DeadLetterCommand, Filter
from grantwire.dead_letters.listing import list_open
from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications import discard_dead_letters, redrive, store
from grantwire.notifications.delivery import Delivery
from grantwire.settings import load
from grantwire.workers.budget import Budget
from grantwire.workers.leases import LeaseSettings
from grantwire.workers.listener import Listener
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.notifications.store import Notification
    from tests.integration.conftest import Rows

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)


class FakeSender:
    """A sender that does what the test says and records the notifications."""

    def __init__(self, respond: Callable[[Notification], None] = lambda _: None, concurrency: int = 1) -> None:
        self.concurrency = concurrency
        self.sent_ids: list[UUID] = []
        self._respond = respond

    def send(self, notification: Notification) -> str:
        """Record the notification, and do what the test says."""
        self.sent_ids.append(notification.notification_id)
        self._respond(notification)
        return "accepted"

    def prepare(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def tx(database_url: str) -> Iterator[Connection]:
    """The connection of a worker."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def add(rows: Rows, count: int = 1, *, at: datetime = NOON) -> list[UUID]:
    """Insert notifications that fall due one millisecond apart, and return their ids."""
    inserted = rows.execute(
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
    return [row["notification_id"] for row in sorted(inserted, key=lambda row: row["next_retry_at"])]


def deliver(
    database_url: str, sender: FakeSender, *, now: datetime = NOON, budget: Budget | None = None, **settings: str
) -> dict[str, int]:
    """Deliver at a given time until nothing is due."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    leases = load(LeaseSettings, settings)
    delivery = Delivery(
        database, sender, Listener(None, "notifications"), leases, "test", now=lambda: now, rand=lambda: 0.5
    )
    try:
        return run_worker(delivery, budget)
    finally:
        delivery.close()
        database.close()


def notifications(rows: Rows) -> list[dict[str, Any]]:
    """Return all notifications, oldest first."""
    return rows.execute("SELECT * FROM notifications ORDER BY created_at").fetchall()


def attempt_times(row: dict[str, Any]) -> list[datetime]:
    """Return when each attempt to send a notification ended."""
    return [datetime.fromisoformat(attempt["at"]) for attempt in row["responses"]]


def test_due_notifications_are_sent_once_longest_due_first(database_url: str, rows: Rows) -> None:
    """D1: PENDING, PROCESSING, SENT; in batches; a notification that is not due yet is not claimed."""
    ids = add(rows, 25)
    (later,) = add(rows)
    rows.execute(
        "UPDATE notifications SET next_retry_at = %s, last_error = 'no' WHERE notification_id = %s",
        (NOON + timedelta(seconds=1), later),
    )
    sender = FakeSender(lambda n: _expect_processing(rows, n))
    assert deliver(database_url, sender, BATCH_SIZE="10")["sent"] == 25
    assert set(sender.sent_ids[:10]) == set(ids[:10])
    assert sorted(sender.sent_ids) == sorted(ids)
    statuses = {row["notification_id"]: row["status"] for row in notifications(rows)}
    assert statuses == dict.fromkeys(ids, "SENT") | {later: "PENDING"}
    (sent,) = [row for row in notifications(rows) if row["notification_id"] == ids[0]]
    assert (sent["sent_at"], sent["next_retry_at"], sent["locked_by"], sent["lease_until"]) == (NOON, None, None, None)


def _expect_processing(rows: Rows, notification: Notification) -> None:
    (row,) = rows.execute(
        "SELECT * FROM notifications WHERE notification_id = %s", (notification.notification_id,)
    ).fetchall()
    assert (row["status"], row["lease_until"]) == ("PROCESSING", NOON + LEASE)
    assert row["locked_by"].startswith("test/")


def test_retryable_failure_is_retried_with_backoff(database_url: str, rows: Rows) -> None:
    """D2, O4: attempts are counted, the delay doubles, nothing is sent before it is due; success clears the error."""
    add(rows)
    failing = FakeSender(_fail_retryable)
    now = NOON
    for attempt, delay in [(1, 1), (2, 2), (3, 4)]:
        assert deliver(database_url, failing, now=now) == _counts(retried=1)
        (row,) = notifications(rows)
        assert (row["status"], row["attempt_count"], row["last_error"]) == ("PENDING", attempt, "busy")
        assert row["next_retry_at"] == now + timedelta(seconds=delay)
        assert (row["locked_by"], row["locked_at"], row["lease_until"]) == (None, None, None)
        assert deliver(database_url, failing, now=row["next_retry_at"] - timedelta(microseconds=1)) == _counts()
        now = row["next_retry_at"]
    assert deliver(database_url, FakeSender(), now=now) == _counts(sent=1)
    (row,) = notifications(rows)
    assert (row["status"], row["attempt_count"], row["last_error"]) == ("SENT", 3, None)
    assert [attempt["response"] for attempt in row["responses"]] == ["busy", "busy", "busy", "accepted"]
    assert attempt_times(row)[::3] == [NOON, now]


def test_only_the_last_responses_are_kept(database_url: str, rows: Rows) -> None:
    """T2: a receiver that is down for days does not make the row longer and longer."""
    add(rows)
    now = NOON
    for _ in range(22):
        deliver(database_url, FakeSender(_fail_retryable), now=now, MAX_ATTEMPTS="100")
        now += timedelta(minutes=2)
    (row,) = notifications(rows)
    assert attempt_times(row) == [NOON + number * timedelta(minutes=2) for number in range(2, 22)]


def test_last_attempt_creates_dead_letter(database_url: str, rows: Rows) -> None:
    """D2: FAILED after max_attempts, with all that a redrive needs."""
    (notification_id,) = add(rows)
    now = NOON
    for _ in range(10):
        deliver(database_url, FakeSender(_fail_retryable), now=now)
        now += timedelta(minutes=2)
    (row,) = notifications(rows)
    assert (row["status"], row["attempt_count"], row["next_retry_at"]) == ("FAILED", 10, None)
    (dead_letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    for name in ("event_id", "event_type", "user_id", "stock_keeping_unit", "version", "payload", "trace_id"):
        assert dead_letter[name] == row[name]
    assert (dead_letter["notification_id"], dead_letter["attempt_count"]) == (notification_id, 10)
    assert (dead_letter["status"], dead_letter["last_error"], dead_letter["closed_at"]) == ("OPEN", "busy", None)
    assert deliver(database_url, FakeSender(), now=now) == _counts()


def test_permanent_failure_is_not_retried(database_url: str, rows: Rows) -> None:
    """D2: the receiver will never accept it; the other notifications are sent."""
    ids = add(rows, 3)
    sender = FakeSender(lambda n: _fail_permanently() if n.notification_id == ids[1] else None)
    assert deliver(database_url, sender) == _counts(sent=2, failed=1)
    assert [(row["status"], row["attempt_count"]) for row in notifications(rows)] == [
        ("SENT", 0),
        ("FAILED", 1),
        ("SENT", 0),
    ]
    assert [row["last_error"] for row in rows.execute("SELECT * FROM notification_dlq")] == ["no such thing"]


def test_unexpected_sender_error_is_retried(database_url: str, rows: Rows) -> None:
    """D2: a bug in a sender costs an attempt, and stops neither the worker nor other notifications."""
    ids = add(rows, 2)
    sender = FakeSender(lambda n: 1 / 0 if n.notification_id == ids[0] else None)  # type: ignore[arg-type]
    assert deliver(database_url, sender) == _counts(sent=1, retried=1)
    assert notifications(rows)[0]["last_error"] == "division by zero"


def test_failed_status_and_dead_letter_are_written_atomically(
    database_url: str, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """D2: if the dead letter cannot be written, the notification is not FAILED, and is retried after its lease."""
    add(rows)
    rows.execute("ALTER TABLE notification_dlq ADD CONSTRAINT always_violated CHECK (false) NOT VALID")
    assert deliver(database_url, FakeSender(lambda _: _fail_permanently())) == _counts()
    assert "always_violated" in capsys.readouterr().out
    (row,) = notifications(rows)
    assert (row["status"], row["attempt_count"], row["last_error"]) == ("PROCESSING", 0, None)
    assert rows.execute("SELECT FROM notification_dlq").fetchall() == []
    rows.execute("ALTER TABLE notification_dlq DROP CONSTRAINT always_violated")
    assert deliver(database_url, FakeSender(lambda _: _fail_permanently()), now=NOON + LEASE) == _counts(failed=1)
    assert notifications(rows)[0]["attempt_count"] == 2


def test_notification_whose_lease_expires_each_time_becomes_failed(database_url: str, rows: Rows) -> None:
    """O2: after the tenth expired lease it is FAILED without another attempt."""
    add(rows)
    with psycopg.connect(database_url, autocommit=True) as tx:
        now = NOON
        for _ in range(10):
            store.claim(tx, f"dies/{now}", limit=1, lease=LEASE, now=now)
            now += LEASE
    sender = FakeSender()
    assert deliver(database_url, sender, now=now) == _counts(failed=1)
    assert sender.sent_ids == []
    (row,) = notifications(rows)
    assert (row["status"], row["attempt_count"]) == ("FAILED", 10)
    assert attempt_times(row)[:2] == [NOON + LEASE, NOON + 2 * LEASE]
    (dead_letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert "lease expired" in dead_letter["last_error"]


def test_lease_is_renewed_while_sending_is_slow(database_url: str, rows: Rows) -> None:
    """D1: sending takes longer than the lease, and no other worker can claim the notifications."""
    add(rows, 3)
    until: list[datetime] = []

    def slow(_: Notification) -> None:
        time.sleep(0.5)
        (row,) = rows.execute("SELECT max(lease_until) AS lease_until FROM notifications").fetchall()
        until.append(row["lease_until"])

    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    delivery = Delivery(
        database, FakeSender(slow), Listener(None, "notifications"), load(LeaseSettings, {"LEASE": "1s"}), "test"
    )
    assert run_worker(delivery) == _counts(sent=3)
    assert until[2] > until[0]
    delivery.close()
    database.close()


def test_no_lease_is_held_after_budget_ends(database_url: str, rows: Rows) -> None:
    """O7: unsent notifications are released without an attempt; a running send is finished."""
    add(rows, 5)
    is_over = False

    def end(_: Notification) -> None:
        nonlocal is_over
        is_over = True
        time.sleep(0.3)

    budget = Budget(1.0, clock=lambda: 2.0 if is_over else 0.0)
    assert deliver(database_url, FakeSender(end), budget=budget) == _counts(sent=1, released=4)
    delivered_rows = notifications(rows)
    assert sorted(row["status"] for row in delivered_rows) == ["PENDING"] * 4 + ["SENT"]
    assert {row["attempt_count"] for row in delivered_rows} == {0}
    assert {row["locked_by"] for row in delivered_rows} == {None}


def test_missing_response_at_end_of_budget_is_failed_attempt(
    database_url: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: the worker ends without a lease, and the notification is retried later."""
    monkeypatch.setattr("grantwire.notifications.delivery_batch._GRACE_SECONDS", 0.05)
    add(rows)
    is_over = released = False

    def hang(_: Notification) -> None:
        nonlocal is_over
        is_over = True
        while not released:
            time.sleep(0.01)

    budget = Budget(1.0, clock=lambda: 2.0 if is_over else 0.0)
    assert deliver(database_url, FakeSender(hang), budget=budget) == _counts(retried=1)
    released = True
    (row,) = notifications(rows)
    assert (row["status"], row["attempt_count"], row["locked_by"]) == ("PENDING", 1, None)


def test_redriven_notification_that_fails_again_reopens_dead_letter(
    database_url: str, tx: Connection, rows: Rows
) -> None:
    """D2, Q2: one dead letter for each notification, however often it fails."""
    (notification_id,) = add(rows)
    deliver(database_url, FakeSender(lambda _: _fail_permanently()))
    assert redrive(tx, [notification_id], now=NOON) == [notification_id]
    assert redrive(tx, [notification_id], now=NOON) == []
    (row,) = notifications(rows)
    assert (row["notification_id"], row["status"], row["attempt_count"]) == (notification_id, "PENDING", 0)
    (dead_letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert (dead_letter["status"], dead_letter["closed_at"]) == ("REDRIVEN", NOON)

    later = NOON + timedelta(hours=1)
    assert deliver(database_url, FakeSender(_fail_retryable), now=later, MAX_ATTEMPTS="1") == _counts(failed=1)
    (dead_letter,) = rows.execute("SELECT * FROM notification_dlq").fetchall()
    assert (dead_letter["status"], dead_letter["closed_at"], dead_letter["failed_at"]) == ("OPEN", None, later)
    assert (dead_letter["last_error"], dead_letter["attempt_count"]) == ("busy", 1)

    redrive(tx, [notification_id], now=later)
    sender = FakeSender()
    assert deliver(database_url, sender, now=later) == _counts(sent=1)
    assert sender.sent_ids == [notification_id]


def test_redrive_restores_swept_notification(database_url: str, tx: Connection, rows: Rows) -> None:
    """Q2, Q4: the dead letter has all its columns; no event gets two notifications."""
    first, second = add(rows, 2)
    deliver(database_url, FakeSender(lambda _: _fail_permanently()))
    before = {row["notification_id"]: row for row in notifications(rows)}
    rows.execute("DELETE FROM notifications")
    # The second event was recorded again after its inbox row and notification were swept.
    add(rows)
    rows.execute("UPDATE notifications SET event_id = %s", (before[second]["event_id"],))
    assert redrive(tx, [first, second], now=NOON) == [first]
    (row,) = rows.execute("SELECT * FROM notifications WHERE notification_id = %s", (first,)).fetchall()
    for name in ("event_id", "event_type", "user_id", "stock_keeping_unit", "version", "payload", "trace_id"):
        assert row[name] == before[first][name]
    assert (row["status"], row["attempt_count"], row["created_at"]) == ("PENDING", 0, NOON)
    assert [dead_letter["dead_letter_id"] for dead_letter in _open_dead_letters(rows)] == [second]


def test_dead_letters_are_listed_and_discarded(database_url: str, tx: Connection, rows: Rows) -> None:
    """Q2, Q3: with user and error, by every filter; a discard is final and can be repeated."""
    ids = add(rows, 3)
    for number, notification_id in enumerate(ids):
        rows.execute(
            "UPDATE notifications SET user_id = %s, next_retry_at = %s, last_error = 'no' WHERE notification_id = %s",
            (f"u_{number}", NOON + timedelta(hours=number), notification_id),
        )
    for number in range(3):
        deliver(database_url, FakeSender(lambda _: _fail_permanently()), now=NOON + timedelta(hours=number))
    assert [
        (dead_letter["dead_letter_id"], dead_letter["user_id"], dead_letter["since"])
        for dead_letter in _open_dead_letters(rows)
    ] == [
        (notification_id, f"u_{number}", NOON + timedelta(hours=number)) for number, notification_id in enumerate(ids)
    ]
    assert {(dead_letter["event_type"], dead_letter["error"]) for dead_letter in _open_dead_letters(rows)} == {
        ("EntitlementGranted", "no such thing")
    }
    for selected, expected in (
        (Filter(user_id="u_1"), [ids[1]]),
        (Filter(event_type="EntitlementGranted", error="such thing"), sorted(ids)),
        (Filter(event_type="EntitlementRevoked"), []),
        (Filter(error="busy"), []),
        (Filter(older_than=timedelta(hours=1), newer_than=timedelta(hours=3)), [ids[1]]),
    ):
        command = DeadLetterCommand("redrive", "notification", filter=selected)
        listed = list_open(tx, command, NOON + timedelta(hours=3), None, 10)
        assert [dead_letter.dead_letter_id for dead_letter in listed] == expected
    assert discard_dead_letters(tx, ids[:2], now=NOON) == sorted(ids[:2])
    assert discard_dead_letters(tx, ids[:2], now=NOON) == []
    assert redrive(tx, ids[:2], now=NOON) == []
    assert [row["status"] for row in notifications(rows)] == ["FAILED"] * 3
    assert [dead_letter["dead_letter_id"] for dead_letter in _open_dead_letters(rows)] == [ids[2]]


def test_claim_reads_only_due_notifications(tx: Connection, rows: Rows) -> None:
    """D1: with a backlog that is not due, the claim reads only the due rows, and its updates are HOT."""
    add(rows, 30_000, at=NOON + timedelta(hours=1))
    add(rows, 100)
    rows.execute("VACUUM ANALYZE notifications")
    before = _table_statistics(tx, rows)
    assert len(store.claim(tx, "w", limit=200, lease=LEASE, now=NOON)) == 100
    after = _table_statistics(tx, rows)
    delta = {name: after[name] - before[name] for name in after}
    # The index entries of the due rows and the primary key of each; dead row versions are read, too.
    assert delta["seq_tup_read"] == 0
    assert 100 <= delta["idx_tup_fetch"] <= 400
    assert delta["n_tup_upd"] == 100
    assert delta["n_tup_hot_upd"] >= 95  # the last page may be full


def _table_statistics(tx: Connection, rows: Rows) -> dict[str, int]:
    """Return the rows read and written so far in both sessions."""
    rows.execute("SELECT pg_stat_force_next_flush()")
    tx.execute("SELECT pg_stat_force_next_flush()")
    (statistics,) = rows.execute(
        "SELECT seq_tup_read, idx_tup_fetch, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'notifications'"
    ).fetchall()
    return statistics


def test_worker_waits_while_database_is_unreachable(rows: Rows) -> None:
    """With `until_idle` it raises RetryableError; otherwise it waits until its budget ends."""
    add(rows)
    unreachable = "postgresql://x:x@127.0.0.1:1/x"
    with pytest.raises(RetryableError):
        deliver(unreachable, FakeSender())
    assert deliver(unreachable, FakeSender(), budget=Budget(time.monotonic() + 0.3)) == _counts()


def test_sent_notification_is_recorded_after_lost_connection(database_url: str, rows: Rows) -> None:
    """D1: the session ends between send and commit; nothing is sent twice, and no attempt is counted."""
    add(rows, 2)
    kill = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'grantwire' AND datname = current_database()"
    )

    def respond(_: Notification) -> None:
        rows.execute(kill)

    sender = FakeSender(respond)
    assert deliver(database_url, sender) == _counts(sent=2)
    assert len(sender.sent_ids) == 2


def _fail_retryable(_: Notification) -> None:
    raise RetryableError("busy")


def _fail_permanently() -> None:
    raise RejectedError("no such thing")


def _counts(**overrides: int) -> dict[str, int]:
    return {"sent": 0, "retried": 0, "failed": 0, "released": 0, "leases_lost": 0} | overrides


def _open_dead_letters(rows: Rows) -> list[dict[str, Any]]:
    """Return the open dead letters, oldest first."""
    return rows.execute("SELECT * FROM dead_letters WHERE kind = 'notification' ORDER BY since").fetchall()
