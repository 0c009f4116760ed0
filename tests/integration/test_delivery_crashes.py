"""D1, D3: delivery workers that are killed or stopped while they send to a real receiver; and wake-ups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from grantwire.events.decoding import decode
from grantwire.notifications.inbox import record_events
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.workers.budget import Budget
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.waiting import WAKEUP_SECONDS, until, until_idle
from tests.support.workers.bridge_stream import event
from tests.support.workers.deliver_receiver import ReceivedRequest, Receiver

if TYPE_CHECKING:
    from typing import Any

    import pytest

    from tests.integration.conftest import Rows

pytestmark = newest_postgres


def start(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a delivery worker in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.deliver_worker", "20"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def add(database_url: str, count: int = 1) -> None:
    """Insert notifications that are due now."""
    events = [decode(event(user_id=f"u_{n}").SerializeToString(), {"trace_id": "1-abc-def"}) for n in range(count)]
    with psycopg.connect(database_url) as connection:
        record_events(connection, events)


def deliver(environ: dict[str, str]) -> dict[str, int]:
    """Deliver in this process until idle."""
    runtime = DeliveryRuntime.build(environ)
    try:
        return runtime.run(until_idle())
    finally:
        runtime.close()


def webhook(database_url: str, receiver: Receiver) -> dict[str, str]:
    """Return the environment of a worker that sends to `receiver`, one notification at a time."""
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        **receiver.environ,
        "NOTIFICATION_WEBHOOK_TIMEOUT": "900ms",
        "NOTIFICATION_WEBHOOK_CONCURRENCY": "1",
        "NOTIFICATION_DELIVERY_LEASE": "1s",
        "HOSTNAME": "the-same-host",
    }


def test_notification_of_killed_worker_is_sent_again_with_same_key(database_url: str, rows: Rows) -> None:
    """D3: kill -9 after the receiver has it and before it is recorded; a receiver that deduplicates has it once."""
    add(database_url)
    with Receiver() as receiver:
        environ = webhook(database_url, receiver)
        worker = start(environ)

        def kill(_: ReceivedRequest) -> None:
            worker.kill()
            worker.wait()

        receiver.respond = kill
        worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        receiver.respond = lambda _: 204
        assert _row(rows)["status"] == "PROCESSING"
        until("another worker sends it", lambda: deliver(environ)["sent"] == 1)
        assert len(receiver.requests) == 2
        assert set(receiver.keys()) == {str(_row(rows)["notification_id"])}
    assert (_row(rows)["status"], _row(rows)["attempt_count"]) == ("SENT", 1)


def test_worker_resumed_after_its_lease_expired_changes_nothing(database_url: str, rows: Rows) -> None:
    """D1: SIGSTOP while sending; another worker with the same host name sends it; the first changes nothing later."""
    add(database_url)
    stopped = threading.Event()
    resumed = threading.Event()
    with Receiver() as receiver:
        environ = webhook(database_url, receiver)
        worker = start(environ)

        def stop(_: ReceivedRequest) -> int:
            if not stopped.is_set():
                os.kill(worker.pid, signal.SIGSTOP)
                stopped.set()
                resumed.wait(60)
            return 204

        receiver.respond = stop
        assert stopped.wait(60)
        until("another worker sends it", lambda: deliver(environ)["sent"] == 1)
        before = _row(rows)
        assert (before["status"], before["attempt_count"]) == ("SENT", 1)
        resumed.set()
        os.kill(worker.pid, signal.SIGCONT)
        output, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors.decode()
    assert json.loads(output.splitlines()[-1]) == {
        "sent": 0,
        "retried": 0,
        "failed": 0,
        "released": 0,
        "leases_lost": 1,
    }
    assert _row(rows) == before


def test_receiver_gets_complete_notifications(database_url: str, rows: Rows) -> None:
    """D3: body, idempotency key, version and trace of each notification of a batch, sent concurrently."""
    add(database_url, 30)
    barrier = threading.Barrier(2, timeout=60)

    def wait_for_other(_: ReceivedRequest) -> int:
        barrier.wait()
        return 200

    with Receiver(wait_for_other) as receiver:
        environ = webhook(database_url, receiver) | {"NOTIFICATION_WEBHOOK_CONCURRENCY": "2"}
        assert deliver(environ)["sent"] == 30
    expected = {row["user_id"]: row for row in rows.execute("SELECT * FROM notifications")}
    assert len(receiver.requests) == 30
    for request in receiver.requests:
        row = expected.pop(request.body["user_id"])
        assert request.key == str(row["notification_id"])
        assert request.body == {"notification_id": str(row["notification_id"]), **row["payload"]}
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["X-Amzn-Trace-Id"] == "Root=1-abc-def"
        assert request.path == "/hook?of=test"
    assert expected == {}


def test_function_handles_its_event_file(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """S2, O7: it stops when nothing is due; the default sender logs each notification; metrics are written."""
    add(database_url, 3)
    runtime = DeliveryRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url})
    handler = WorkerHandler("deliver_notifications", lambda _: runtime)
    request = json.loads((ROOT / "infra/events/deliver_notifications.json").read_text())
    assert handler(request, None)["sent"] == 3
    runtime.close()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len([line for line in lines if line.get("message") == "notification delivered"]) == 3
    assert [line["NotificationsSent"] for line in lines if "NotificationsSent" in line] == [[3.0]]


_UNREACHABLE = "127.0.0.1:1"


def test_commit_wakes_worker(database_url: str, rows: Rows) -> None:
    """The poll interval is longer than the test waits; the worker listens on DATABASE_LISTEN_HOST."""
    here = urlsplit(database_url).netloc.rpartition("@")[2]
    _send_when_idle(database_url, rows, NOTIFICATION_DELIVERY_POLL_INTERVAL="1m", DATABASE_LISTEN_HOST=here)


def test_worker_polls_without_wakeup(database_url: str, rows: Rows) -> None:
    """With the wake-up disabled or unreachable, the notification is sent after a poll interval."""
    _send_when_idle(database_url, rows, NOTIFICATION_DELIVERY_WAKEUP="false")
    rows.execute("DELETE FROM notifications")
    _send_when_idle(database_url, rows, DATABASE_LISTEN_HOST=_UNREACHABLE)


def _send_when_idle(database_url: str, rows: Rows, **environ: str) -> None:
    """Commit a notification while a worker is idle, and wait until the worker has sent it."""
    runtime = DeliveryRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url, **environ})
    is_over = False
    worker = threading.Thread(
        target=lambda: runtime.run(Budget(1.0, clock=lambda: 2.0 if is_over else 0.0)), daemon=True
    )
    worker.start()
    # Idle: it has polled at least once, and listens if it can.
    idle = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'grantwire-delivery%' AND state = 'idle'"
    until("the worker is idle", lambda: rows.execute(idle).fetchall())
    if environ.get("DATABASE_LISTEN_HOST", _UNREACHABLE) != _UNREACHABLE:
        listening = """SELECT FROM pg_stat_activity WHERE query = 'LISTEN "notifications"' AND state = 'idle'"""
        until("the worker listens", lambda: rows.execute(listening).fetchall())
    add(database_url)
    sent = "SELECT FROM notifications WHERE status = 'SENT'"
    until("it is sent", lambda: rows.execute(sent).fetchall(), WAKEUP_SECONDS)
    is_over = True
    add(database_url)  # wakes the worker, so that it notices the end of its budget
    worker.join(timeout=60)
    runtime.close()


def _row(rows: Rows) -> dict[str, Any]:
    (row,) = rows.execute("SELECT * FROM notifications").fetchall()
    return row
