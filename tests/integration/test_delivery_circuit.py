"""C10, D1, D2: delivery behind a circuit breaker: an outage of the receiver costs no notification an attempt."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import ReceiverBusyError, RejectedError, RetryableError
from grantwire.notifications.delivery import Delivery
from grantwire.notifications.senders import Sender
from grantwire.observability import metrics
from grantwire.settings import load
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime, DeliverySettings
from grantwire.workers.budget import Budget
from grantwire.workers.leases import LeaseSettings
from grantwire.workers.listener import Listener
from grantwire_idempotency import CircuitBreaker
from layers.idempotency.tests.unit.doubles import logged
from tests.support.module_database import database_url
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.waiting import until, until_idle
from tests.support.worker_runner import run_worker
from tests.support.workers.deliver_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from grantwire.notifications.store import Notification
    from tests.integration.conftest import Rows

__all__ = ["database_url"]

pytestmark = newest_postgres

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)
REST_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _truncate_tables(rows: Rows) -> None:
    """Start each test without notifications."""
    rows.execute("TRUNCATE notifications, notification_dlq")


def add(rows: Rows, count: int, *, at: datetime = NOON) -> list[UUID]:
    """Insert notifications that fell due before `at`, one millisecond apart, and return their ids, oldest first."""
    inserted = rows.execute(
        """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   next_retry_at, created_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u', 'item' || n, 1,
               jsonb_build_object('event_id', gen_random_uuid(), 'version', 1), %(at)s + n * interval '1 ms',
               %(at)s + n * interval '1 ms'
          FROM generate_series(1, %(count)s) n
        RETURNING notification_id, next_retry_at""",
        {"at": at - timedelta(milliseconds=count), "count": count},
    ).fetchall()
    return [row["notification_id"] for row in sorted(inserted, key=lambda row: row["next_retry_at"])]


class FakeSender(Sender):
    """A sender that calls a function."""

    def __init__(self, send: Callable[[Notification], None]) -> None:
        self._send = send

    @property
    def concurrency(self) -> int:
        """One notification at a time."""
        return 1

    def send(self, notification: Notification) -> str:
        """Call the function."""
        self._send(notification)
        return "accepted"


class DeliveryHarness:
    """A delivery with a controlled sender, clock and circuit breaker, which opens after three failures."""

    def __init__(self, database_url: str, respond: Callable[[Notification], None], leases: LeaseSettings) -> None:
        self.respond = respond
        self.sent_ids: list[UUID] = []
        self.now = NOON
        self.seconds = 1000.0
        self.breaker = CircuitBreaker(
            "receiver", failures=3, rest=timedelta(seconds=REST_SECONDS), clock=lambda: self.seconds
        )
        self._database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
        self.delivery = Delivery(
            self._database,
            FakeSender(self._send),
            Listener(None, "notifications"),
            leases,
            "test",
            breaker=self.breaker,
            now=lambda: self.now,
            rand=lambda: 0.5,
        )

    def _send(self, notification: Notification) -> None:
        """Record the notification, and do what the test says."""
        self.sent_ids.append(notification.notification_id)
        self.respond(notification)

    def run(self, budget: Budget | None = None) -> dict[str, int]:
        """Run until idle, or for `budget`; return the counts that are not zero."""
        counts = run_worker(self.delivery, budget)
        return {name: count for name, count in counts.items() if count}

    def take_sent(self) -> list[UUID]:
        """Return the notifications that were sent since the last call."""
        sent_ids, self.sent_ids = self.sent_ids, []
        return sent_ids

    def close(self) -> None:
        """Close threads and connection."""
        self.delivery.close()
        self._database.close()


@pytest.fixture
def harness(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeliveryHarness]:
    """A delivery whose receiver is down; outcomes are written when the whole batch is done."""
    monkeypatch.setattr("grantwire.notifications.delivery_batch._WRITE_INTERVAL_SECONDS", 30)
    harness = DeliveryHarness(database_url, down, load(LeaseSettings, {"MAX_ATTEMPTS": "3"}))
    yield harness
    harness.close()


def down(_: Notification) -> None:
    """Fail as if the receiver were down."""
    raise RetryableError("no response")


def up(_: Notification) -> None:
    """Accept the notification."""


def notifications(rows: Rows) -> list[dict[str, Any]]:
    """Return all notifications, oldest first."""
    return rows.execute("SELECT * FROM notifications ORDER BY created_at").fetchall()


def dead_letters(rows: Rows) -> list[dict[str, Any]]:
    """Return all dead letters."""
    return rows.execute("SELECT * FROM notification_dlq").fetchall()


def test_outage_counts_no_attempts_and_claims_only_trials(rows: Rows, harness: DeliveryHarness) -> None:
    """C10, D1: three failures open the circuit and release the rest; then each rest ends with one trial."""
    ids = add(rows, 5)
    assert harness.run() == {"retried": 3, "released": 2}
    failed = harness.take_sent()
    waiting = [notification_id for notification_id in ids if notification_id not in failed]
    before = {row["notification_id"]: row for row in notifications(rows)}
    assert {row["status"] for row in before.values()} == {"PENDING"}
    assert {row["attempt_count"] for row in before.values()} == {0}
    assert {row["locked_by"] for row in before.values()} == {None}
    # Those that failed are retried after the others; those that were released keep their place.
    for row in (before[notification_id] for notification_id in failed):
        assert (row["last_error"], row["next_retry_at"]) == ("no response", NOON + timedelta(seconds=1))
    for row in (before[notification_id] for notification_id in waiting):
        assert (row["last_error"], row["next_retry_at"] <= NOON) == (None, True)

    assert harness.run() == {}
    assert harness.take_sent() == []
    assert notifications(rows) == list(before.values())

    for trial in waiting:
        harness.seconds += REST_SECONDS
        assert harness.run() == {"retried": 1}
        assert harness.take_sent() == [trial]

    harness.now += timedelta(hours=1)
    for _ in range(30):
        harness.seconds += REST_SECONDS
        assert harness.run() == {"retried": 1}
        harness.now += timedelta(seconds=REST_SECONDS)
    assert set(harness.take_sent()) == set(ids)
    assert [row["attempt_count"] for row in notifications(rows)] == [0] * 5
    assert dead_letters(rows) == []

    harness.respond = up
    harness.seconds += REST_SECONDS
    assert harness.run() == {"sent": 5}
    assert harness.breaker.closed
    assert {row["status"] for row in notifications(rows)} == {"SENT"}


def test_receiver_that_is_down_for_20_hours_makes_no_dead_letter(rows: Rows, database_url: str) -> None:
    """D2: with one change a minute and the default settings, all is sent within 20 minutes after it is back."""
    leases = load(DeliverySettings, {**PLAINTEXT, "DATABASE_URL": database_url}).leases
    harness = DeliveryHarness(database_url, down, leases)
    minutes = 5
    try:
        for _ in range(20 * 60 // minutes):
            add(rows, minutes, at=harness.now)
            harness.run()
            harness.now += timedelta(minutes=minutes)
            harness.seconds += 60 * minutes
        harness.respond = up
        for _ in range(20):
            harness.run()
            harness.now += timedelta(minutes=1)
            harness.seconds += 60
    finally:
        harness.close()
    assert dead_letters(rows) == []
    assert {row["status"] for row in notifications(rows)} == {"SENT"}


def test_time_that_the_receiver_names_is_waited_for(rows: Rows, harness: DeliveryHarness) -> None:
    """D2: the next attempt is not before it, also while the circuit is open; without one the backoff decides."""

    def busy(_: Notification) -> None:
        raise ReceiverBusyError("receiver responded with status 429", retry_after=600)

    harness.respond = busy
    add(rows, 4)
    assert harness.run() == {"retried": 3, "released": 1}
    due = [row["next_retry_at"] for row in notifications(rows)]
    assert due[:3] == [NOON + timedelta(minutes=10)] * 3


def test_trial_is_claimed_alone(rows: Rows, harness: DeliveryHarness) -> None:
    """C10, D1: no other notification is leased while the trial is sent."""
    add(rows, 6)
    harness.run()

    def count_claimed(_: Notification) -> None:
        held = rows.execute("SELECT FROM notifications WHERE status = 'PROCESSING'").fetchall()
        claimed.append(len(held))

    claimed: list[int] = []
    harness.respond = count_claimed
    harness.seconds += REST_SECONDS
    assert harness.run() == {"sent": 3}
    assert claimed == [1, 2, 2]


def test_failures_before_circuit_opens_count_as_attempts(rows: Rows, harness: DeliveryHarness) -> None:
    """D2: two failures are retried with an attempt each; the third opens the circuit."""
    add(rows, 2)
    assert harness.run() == {"retried": 2}
    assert [row["attempt_count"] for row in notifications(rows)] == [1, 1]
    harness.now += timedelta(minutes=1)
    assert harness.run() == {"retried": 1, "released": 1}
    assert [row["attempt_count"] for row in notifications(rows)] == [1, 1]


def test_notification_that_fails_alone_becomes_dead_letter(rows: Rows, harness: DeliveryHarness) -> None:
    """D2: others are sent meanwhile, so the circuit stays closed."""
    (failing,) = add(rows, 1, at=NOON - timedelta(minutes=1))
    harness.respond = lambda n: down(n) if n.notification_id == failing else None
    for attempt in (1, 2, 3):
        add(rows, 4, at=harness.now)
        assert harness.run() == {"sent": 4, "failed" if attempt == 3 else "retried": 1}
        assert notifications(rows)[0]["attempt_count"] == attempt
        harness.now += timedelta(minutes=5)
    assert harness.breaker.closed
    assert [dead_letter["notification_id"] for dead_letter in dead_letters(rows)] == [failing]


def test_failed_notifications_do_not_keep_circuit_open(rows: Rows, harness: DeliveryHarness) -> None:
    """C10: trials alternate, so a notification that can be sent is tried and closes the circuit."""
    ids = add(rows, 5)
    assert harness.run() == {"retried": 3, "released": 2}
    failing = harness.take_sent()
    harness.respond = lambda n: down(n) if n.notification_id in failing else None
    harness.now += timedelta(minutes=1)
    harness.seconds += REST_SECONDS
    assert harness.run() == {"sent": 2, "retried": 3}
    sent = [row["notification_id"] for row in notifications(rows) if row["status"] == "SENT"]
    assert sent == [notification_id for notification_id in ids if notification_id not in failing]
    assert harness.take_sent()[0] == sent[0]


def test_permanent_failure_of_trial_closes_circuit(rows: Rows, harness: DeliveryHarness) -> None:
    """C10, D2: the receiver responds again; the notification that it refuses becomes a dead letter immediately."""

    def refuse(_: Notification) -> None:
        raise RejectedError("receiver responded with status 410")

    ids = add(rows, 4)
    harness.run()
    failed = harness.take_sent()
    harness.respond = refuse
    harness.seconds += REST_SECONDS
    assert harness.run() == {"failed": 1}
    assert harness.breaker.closed
    assert {dead_letter["notification_id"] for dead_letter in dead_letters(rows)} == set(ids) - set(failed)


def test_unexpected_sender_error_counts_attempt_while_circuit_is_open(rows: Rows, harness: DeliveryHarness) -> None:
    """D2: it says nothing about the receiver, and must not be retried forever."""
    add(rows, 4)
    harness.run()
    harness.respond = lambda _: 1 / 0  # type: ignore[assignment]
    harness.seconds += REST_SECONDS
    assert harness.run() == {"retried": 1}
    assert not harness.breaker.closed
    assert sorted(row["attempt_count"] for row in notifications(rows)) == [0, 0, 0, 1]


def test_worker_waiting_for_receiver_ends_with_its_budget(
    rows: Rows, harness: DeliveryHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7, C10: it logs the reason, reports the waiting time as a metric, and holds no lease."""
    add(rows, 4)
    harness.run()
    harness.take_sent()
    metrics.clear_metrics()
    capsys.readouterr()
    assert harness.run(Budget(time.monotonic() + 1.0)) == {}
    assert harness.take_sent() == []
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["message"], line["level"]) == ("receiver unavailable, waiting", "WARNING")
    assert 0 < line["delay_s"] <= 1
    assert list(metrics.metric_set) == ["SenderPaused"]
    assert metrics.metric_set["SenderPaused"]["Unit"] == "Seconds"
    assert 0 < metrics.metric_set["SenderPaused"]["Value"][0] <= 1
    assert {row["locked_by"] for row in notifications(rows)} == {None}


class StoppedReceiver(Receiver):
    """A receiver whose port refuses connections until `start_listening`."""

    def __init__(self) -> None:
        super().__init__()
        self._server.server_close()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()

    def start_listening(self) -> None:
        """Accept connections from now on."""
        self._server.server_activate()


def environment(database_url: str, receiver: Receiver, **more: str) -> dict[str, str]:
    """Return the environment of a worker that sends to `receiver`; all attempts take less than a second."""
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        **receiver.environ,
        "NOTIFICATION_WEBHOOK_CONCURRENCY": "4",
        "NOTIFICATION_DELIVERY_WAKEUP": "false",
        "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "3",
        "NOTIFICATION_DELIVERY_BACKOFF_BASE": "10ms",
        "NOTIFICATION_DELIVERY_BACKOFF_MAX": "20ms",
        "NOTIFICATION_SENDER_BREAKER_REST": "100ms",
        **more,
    }


def test_receiver_gets_every_notification_once_after_outage(
    database_url: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: its port refuses connections for longer than all attempts take; no dead letter, nothing lost."""
    receiver = StoppedReceiver()
    runtime = DeliveryRuntime.build(environment(database_url, receiver))
    add(rows, 60, at=datetime.now(UTC))
    is_over = False
    worker = threading.Thread(target=lambda: runtime.run(Budget(1.0, clock=lambda: 2.0 if is_over else 0.0)))
    worker.start()
    count_failed = "SELECT count(*) AS n FROM notifications WHERE last_error LIKE 'no response%'"
    # Twenty failures open the circuit, and up to three more sends are running then; all later ones are trials.
    until("trials fail", lambda: rows.execute(count_failed).fetchall()[0]["n"] >= 28)
    assert receiver.requests == []
    receiver.start_listening()
    with receiver:
        sent = "SELECT FROM notifications WHERE status = 'SENT'"
        until("all are sent", lambda: len(rows.execute(sent).fetchall()) == 60)
        is_over = True
        worker.join(timeout=60)
    runtime.close()
    assert dead_letters(rows) == []
    assert len(receiver.keys()) == len(set(receiver.keys())) == 60
    assert {row["attempt_count"] for row in notifications(rows)} <= {0, 1}
    lines = logged(caplog, "WARNING", "ERROR")
    changes = [line["message"] for line in lines if line.get("circuit") == "sender webhook"]
    assert changes == ["circuit opened", "circuit closed"]


def test_receiver_that_responds_503_gets_few_requests(database_url: str, rows: Rows) -> None:
    """C10: of 200 notifications it gets the first twenty and those already running."""
    add(rows, 200, at=datetime.now(UTC))
    with Receiver(lambda _: 503) as receiver:
        runtime = DeliveryRuntime.build(environment(database_url, receiver, NOTIFICATION_SENDER_BREAKER_REST="1m"))
        counts = runtime.run(until_idle())
        runtime.close()
    assert 20 <= len(receiver.requests) <= 23
    assert counts["retried"] == len(receiver.requests)
    assert counts["released"] == 200 - counts["retried"]
    assert {row["status"] for row in notifications(rows)} == {"PENDING"}


def test_disabled_breaker_sends_every_attempt(database_url: str, rows: Rows) -> None:
    """D2: with NOTIFICATION_SENDER_BREAKER_FAILURES=0 each notification has its attempts and becomes a dead letter."""
    add(rows, 30, at=datetime.now(UTC))
    with Receiver(lambda _: 503) as receiver:
        runtime = DeliveryRuntime.build(environment(database_url, receiver, NOTIFICATION_SENDER_BREAKER_FAILURES="0"))
        until("all are dead letters", lambda: runtime.run(until_idle()) and len(dead_letters(rows)) == 30)
        runtime.close()
    assert len(receiver.requests) == 90
