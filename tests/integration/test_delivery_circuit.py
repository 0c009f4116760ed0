"""C10, D1, D2: delivery behind a circuit breaker: a receiver that is down costs nobody an attempt, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import RejectedError, RetryableError
from grantwire.notifications.delivery import Delivery
from grantwire.observability import metrics
from grantwire.runtime.delivery import DeliveryRuntime
from grantwire.settings import load
from grantwire.workers.budget import Budget
from grantwire.workers.leases import LeaseSettings
from grantwire.workers.listener import Listener
from grantwire_idempotency.circuit_breaker import CircuitBreaker
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker
from tests.support.workers.deliver_receiver import Receiver
from tests.unit.idempotency.doubles import logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from grantwire.notifications.store import Notification
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)
REST = 5.0


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all tests of this file."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def _nothing_left(rows: Rows) -> None:
    """Each begins without notifications."""
    rows.execute("TRUNCATE notifications, notification_dlq")


def add(rows: Rows, count: int, *, at: datetime = NOON) -> list[UUID]:
    """Notifications that fell due before `at`, one millisecond after the other; the oldest first."""
    made = rows.execute(
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
    return [row["notification_id"] for row in sorted(made, key=lambda row: row["next_retry_at"])]


class Scene:
    """A delivery whose sender, time and circuit are the test's; the circuit opens after three failures."""

    def __init__(self, database_url: str, answer: Callable[[Notification], None]) -> None:
        self.concurrency = 1
        self.answer = answer
        self.got: list[UUID] = []
        self.now = NOON
        self.seconds = 1000.0
        self.breaker = CircuitBreaker("receiver", failures=3, rest=timedelta(seconds=REST), clock=lambda: self.seconds)
        self._database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
        self.delivery = Delivery(
            self._database,
            self,
            Listener(None, "notifications"),
            load(LeaseSettings, {"MAX_ATTEMPTS": "3"}),
            "test",
            breaker=self.breaker,
            now=lambda: self.now,
            rand=lambda: 0.5,
        )

    def send(self, notification: Notification) -> None:
        """Remember what was tried, and do what the test says."""
        self.got.append(notification.notification_id)
        self.answer(notification)

    def run(self, budget: Budget | None = None) -> dict[str, int]:
        """Until there is nothing that may be done; what came of it, without the zeros."""
        counts = run_worker(self.delivery, budget)
        return {name: count for name, count in counts.items() if count}

    def tried(self) -> list[UUID]:
        """What was sent since the last time."""
        got, self.got = self.got, []
        return got

    def close(self) -> None:
        """Let threads and connection go."""
        self.delivery.close()
        self._database.close()


@pytest.fixture
def scene(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A receiver that is down; outcomes are written when all of a batch are known."""
    monkeypatch.setattr("grantwire.notifications.delivery_batch._TICK_SECONDS", 30)
    scene = Scene(database_url, down)
    yield scene
    scene.close()


def down(_: Notification) -> None:
    """No answer."""
    raise RetryableError("no answer")


def up(_: Notification) -> None:
    """It is told."""


def look(rows: Rows) -> list[dict[str, Any]]:
    """Every notification, in order."""
    return rows.execute("SELECT * FROM notifications ORDER BY created_at").fetchall()


def letters(rows: Rows) -> list[dict[str, Any]]:
    """Every dead letter."""
    return rows.execute("SELECT * FROM notification_dlq").fetchall()


def test_an_outage_costs_no_attempt_and_claims_nothing_but_trials(rows: Rows, scene: Scene) -> None:
    """C10, D1: opened by three of a batch, the rest untried; then one trial for each rest, another one each time."""
    ids = add(rows, 5)
    assert scene.run() == {"retried": 3, "released": 2}
    failed = scene.tried()
    waiting = [one for one in ids if one not in failed]
    before = {row["notification_id"]: row for row in look(rows)}
    assert {row["status"] for row in before.values()} == {"PENDING"}
    assert {row["attempt_count"] for row in before.values()} == {0}
    assert {row["locked_by"] for row in before.values()} == {None}
    # Those that failed go behind the others; those that were not tried keep their place.
    for one in failed:
        assert (before[one]["last_error"], before[one]["next_retry_at"]) == ("no answer", NOON + timedelta(seconds=1))
    for one in waiting:
        assert (before[one]["last_error"], before[one]["next_retry_at"] <= NOON) == (None, True)

    assert scene.run() == {}
    assert scene.tried() == []
    assert look(rows) == list(before.values())

    for trial in waiting:
        scene.seconds += REST
        assert scene.run() == {"retried": 1}
        assert scene.tried() == [trial]

    scene.now += timedelta(hours=1)
    for _ in range(30):
        scene.seconds += REST
        assert scene.run() == {"retried": 1}
        scene.now += timedelta(seconds=REST)
    assert set(scene.tried()) == set(ids)
    assert [row["attempt_count"] for row in look(rows)] == [0] * 5
    assert letters(rows) == []

    scene.answer = up
    scene.seconds += REST
    assert scene.run() == {"sent": 5}
    assert scene.breaker.closed
    assert {row["status"] for row in look(rows)} == {"SENT"}


def test_a_trial_is_claimed_alone(rows: Rows, scene: Scene) -> None:
    """C10, D1: nobody else's lease waits for its answer."""
    add(rows, 6)
    scene.run()

    def alone(_: Notification) -> None:
        held = rows.execute("SELECT FROM notifications WHERE status = 'PROCESSING'").fetchall()
        claimed.append(len(held))

    claimed: list[int] = []
    scene.answer = alone
    scene.seconds += REST
    assert scene.run() == {"sent": 3}
    assert claimed == [1, 2, 2]


def test_failures_before_the_circuit_opens_count(rows: Rows, scene: Scene) -> None:
    """D2: two in a row are no outage; they are put off with an attempt each, and the third opens it."""
    add(rows, 2)
    assert scene.run() == {"retried": 2}
    assert [row["attempt_count"] for row in look(rows)] == [1, 1]
    scene.now += timedelta(minutes=1)
    assert scene.run() == {"retried": 1, "released": 1}
    assert [row["attempt_count"] for row in look(rows)] == [1, 1]


def test_a_notification_that_fails_while_others_are_sent_ends_as_a_dead_letter(rows: Rows, scene: Scene) -> None:
    """D2: that is its own fault; the circuit stays closed."""
    (poison,) = add(rows, 1, at=NOON - timedelta(minutes=1))
    scene.answer = lambda n: down(n) if n.notification_id == poison else None
    for attempt in (1, 2, 3):
        add(rows, 4, at=scene.now)
        assert scene.run() == {"sent": 4, "failed" if attempt == 3 else "retried": 1}
        assert look(rows)[0]["attempt_count"] == attempt
        scene.now += timedelta(minutes=5)
    assert scene.breaker.closed
    assert [letter["notification_id"] for letter in letters(rows)] == [poison]


def test_those_that_opened_the_circuit_do_not_keep_it_open_for_the_others(rows: Rows, scene: Scene) -> None:
    """C10: trials take turns, so what can be sent is sent, and closes it."""
    ids = add(rows, 5)
    assert scene.run() == {"retried": 3, "released": 2}
    poison = scene.tried()
    scene.answer = lambda n: down(n) if n.notification_id in poison else None
    scene.now += timedelta(minutes=1)
    scene.seconds += REST
    assert scene.run() == {"sent": 2, "retried": 3}
    sent = [row["notification_id"] for row in look(rows) if row["status"] == "SENT"]
    assert sent == [one for one in ids if one not in poison]
    assert scene.tried()[0] == sent[0]


def test_a_refusal_is_an_answer_also_as_a_trial(rows: Rows, scene: Scene) -> None:
    """C10, D2: the receiver is back; what it refuses for good is a dead letter at once."""

    def refuse(_: Notification) -> None:
        raise RejectedError("the receiver answered 410")

    ids = add(rows, 4)
    scene.run()
    failed = scene.tried()
    scene.answer = refuse
    scene.seconds += REST
    assert scene.run() == {"failed": 1}
    assert scene.breaker.closed
    assert {letter["notification_id"] for letter in letters(rows)} == set(ids) - set(failed)


def test_a_bug_in_a_sender_counts_an_attempt_also_while_the_circuit_is_open(rows: Rows, scene: Scene) -> None:
    """D2: it says nothing about the receiver, and must not be tried for ever."""
    add(rows, 4)
    scene.run()
    scene.answer = lambda _: 1 / 0  # type: ignore[assignment]
    scene.seconds += REST
    assert scene.run() == {"retried": 1}
    assert not scene.breaker.closed
    assert sorted(row["attempt_count"] for row in look(rows)) == [0, 0, 0, 1]


def test_while_it_waits_for_the_receiver_a_worker_ends_with_its_budget(
    rows: Rows, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """O7, C10: it says what it waits for, tells for how long in a metric, and holds nothing."""
    add(rows, 4)
    scene.run()
    scene.tried()
    metrics.clear_metrics()
    capsys.readouterr()
    assert scene.run(Budget(time.monotonic() + 0.1)) == {}
    assert scene.tried() == []
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["message"], line["level"], line["delay_s"]) == ("receiver unavailable, waiting", "WARNING", 0.1)
    assert list(metrics.metric_set) == ["SenderPaused"]
    assert metrics.metric_set["SenderPaused"]["Unit"] == "Seconds"
    assert 0 < metrics.metric_set["SenderPaused"]["Value"][0] <= 0.1
    assert {row["locked_by"] for row in look(rows)} == {None}


class Returning(Receiver):
    """A receiver whose port refuses every connection until it comes back."""

    def __init__(self) -> None:
        super().__init__()
        self._server.server_close()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()

    def come_back(self) -> None:
        """Listen."""
        self._server.server_activate()


def environment(database_url: str, receiver: Receiver, **more: str) -> dict[str, str]:
    """A worker that tells `receiver`; without a circuit every notification would be dead within a second."""
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        "NOTIFICATION_SENDER": "webhook",
        "NOTIFICATION_WEBHOOK_URL": receiver.url,
        "NOTIFICATION_WEBHOOK_CONCURRENCY": "4",
        "NOTIFICATION_DELIVERY_WAKEUP": "false",
        "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "3",
        "NOTIFICATION_DELIVERY_BACKOFF_BASE": "10ms",
        "NOTIFICATION_DELIVERY_BACKOFF_MAX": "20ms",
        "NOTIFICATION_SENDER_BREAKER_REST": "100ms",
        **more,
    }


def test_a_receiver_that_is_down_and_comes_back_is_told_everything_once(
    database_url: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """C10: a port that refuses connections for many times the life of a notification; no dead letter, nothing lost."""
    receiver = Returning()
    runtime = DeliveryRuntime.build(environment(database_url, receiver))
    add(rows, 60, at=datetime.now(UTC))
    over = False
    worker = threading.Thread(target=lambda: runtime.run(Budget(1.0, clock=lambda: 2.0 if over else 0.0)))
    worker.start()
    tried = "SELECT count(*) AS n FROM notifications WHERE last_error LIKE 'no answer%'"
    # Twenty failures open it, up to three more are under way then; whatever is tried after that is a trial.
    _until(lambda: rows.execute(tried).fetchall()[0]["n"] >= 28)
    assert receiver.requests == []
    receiver.come_back()
    with receiver:
        _until(lambda: len(rows.execute("SELECT FROM notifications WHERE status = 'SENT'").fetchall()) == 60)
        over = True
        worker.join(timeout=20)
    runtime.close()
    assert letters(rows) == []
    assert len(receiver.keys()) == len(set(receiver.keys())) == 60
    assert {row["attempt_count"] for row in look(rows)} <= {0, 1}
    lines = logged(caplog, "WARNING", "ERROR")
    changes = [line["message"] for line in lines if line.get("circuit") == "sender webhook"]
    assert changes == ["circuit opened", "circuit closed"]


def test_a_receiver_that_answers_503_is_left_alone(database_url: str, rows: Rows) -> None:
    """C10: of 200 notifications it sees twenty, and those that were under way; several at once, for real."""
    add(rows, 200, at=datetime.now(UTC))
    with Receiver(lambda _: 503) as receiver:
        runtime = DeliveryRuntime.build(environment(database_url, receiver, NOTIFICATION_SENDER_BREAKER_REST="1m"))
        counts = runtime.run(Budget(time.monotonic() + 20, until_idle=True))
        runtime.close()
    assert 20 <= len(receiver.requests) <= 23
    assert counts["retried"] == len(receiver.requests)
    assert counts["released"] == 200 - counts["retried"]
    assert {row["status"] for row in look(rows)} == {"PENDING"}


def test_switched_off_every_notification_has_its_attempts_and_ends(database_url: str, rows: Rows) -> None:
    """D2: NOTIFICATION_SENDER_BREAKER_FAILURES=0, as it was before."""
    add(rows, 30, at=datetime.now(UTC))
    with Receiver(lambda _: 503) as receiver:
        runtime = DeliveryRuntime.build(environment(database_url, receiver, NOTIFICATION_SENDER_BREAKER_FAILURES="0"))
        _until(lambda: runtime.run(Budget(time.monotonic() + 20, until_idle=True)) and len(letters(rows)) == 30)
        runtime.close()
    assert len(receiver.requests) == 90


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
