"""D1, D3: workers that are killed or stopped while they send, to a real receiver; and how fast they are woken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from grantwire.entrypoints.worker import WorkerHandler
from grantwire.notifications.events import decode
from grantwire.notifications.inbox import record
from grantwire.runtime.delivery import DeliveryRuntime
from grantwire.workers.budget import Budget
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.workers.bridge_stream import event
from tests.support.workers.deliver_receiver import Received, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import pytest

    from tests.integration.conftest import Rows


def start(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A delivery in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.deliver_worker", "20"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def add(database_url: str, count: int = 1) -> None:
    """Notifications that are due now."""
    events = [decode(event(user_id=f"u_{n}").SerializeToString(), {"trace_id": "1-abc-def"}) for n in range(count)]
    with psycopg.connect(database_url) as connection:
        record(connection, events)


def deliver(environ: dict[str, str]) -> dict[str, int]:
    """Deliver in this process until there is nothing to do."""
    runtime = DeliveryRuntime.build(environ)
    try:
        return runtime.run(Budget(time.monotonic() + 20, until_idle=True))
    finally:
        runtime.close()


def webhook(database_url: str, receiver: Receiver) -> dict[str, str]:
    """The environment of a worker that tells `receiver`, one at a time."""
    return {
        **PLAINTEXT,
        "DATABASE_URL": database_url,
        "NOTIFICATION_SENDER": "webhook",
        "NOTIFICATION_WEBHOOK_URL": receiver.url,
        "NOTIFICATION_WEBHOOK_TIMEOUT": "10s",
        "NOTIFICATION_WEBHOOK_CONCURRENCY": "1",
        "NOTIFICATION_DELIVERY_LEASE": "1s",
        "HOSTNAME": "the-same-host",
    }


def test_a_worker_killed_while_sending_sends_again_under_the_same_key(database_url: str, rows: Rows) -> None:
    """D3: kill -9 after the receiver has it and before it is recorded; a receiver that deduplicates has it once."""
    add(database_url)
    with Receiver() as receiver:
        environ = webhook(database_url, receiver)
        worker = start(environ)

        def kill(_: Received) -> None:
            worker.kill()
            worker.wait()

        receiver.answer = kill
        worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        receiver.answer = lambda _: 204
        assert _row(rows)["status"] == "PROCESSING"
        _until(lambda: deliver(environ)["sent"] == 1)
        assert len(receiver.requests) == 2
        assert set(receiver.keys()) == {str(_row(rows)["notification_id"])}
    assert (_row(rows)["status"], _row(rows)["attempt_count"]) == ("SENT", 1)


def test_a_worker_stopped_past_its_lease_changes_nothing_when_it_goes_on(database_url: str, rows: Rows) -> None:
    """D1: SIGSTOP while it sends; another worker of the same host name takes over; continued, the first is fenced."""
    add(database_url)
    stopped = threading.Event()
    go_on = threading.Event()
    with Receiver() as receiver:
        environ = webhook(database_url, receiver)
        worker = start(environ)

        def stop(_: Received) -> int:
            if not stopped.is_set():
                os.kill(worker.pid, signal.SIGSTOP)
                stopped.set()
                go_on.wait(20)
            return 204

        receiver.answer = stop
        assert stopped.wait(20)
        _until(lambda: deliver(environ)["sent"] == 1)
        before = _row(rows)
        assert (before["status"], before["attempt_count"]) == ("SENT", 1)
        go_on.set()
        os.kill(worker.pid, signal.SIGCONT)
        output, errors = worker.communicate(timeout=20)
    assert worker.returncode == 0, errors.decode()
    assert json.loads(output.splitlines()[-1]) == {
        "sent": 0,
        "retried": 0,
        "failed": 0,
        "released": 0,
        "leases_lost": 1,
    }
    assert _row(rows) == before


def test_a_receiver_is_told_all_of_it(database_url: str, rows: Rows) -> None:
    """D3: body, idempotency key, version and trace; every one of a batch, several at once."""
    add(database_url, 30)
    both = threading.Barrier(2, timeout=10)

    def meet(_: Received) -> int:
        both.wait()
        return 200

    with Receiver(meet) as receiver:
        environ = webhook(database_url, receiver) | {"NOTIFICATION_WEBHOOK_CONCURRENCY": "2"}
        assert deliver(environ)["sent"] == 30
    found = {row["user_id"]: row for row in rows.execute("SELECT * FROM notifications")}
    assert len(receiver.requests) == 30
    for request in receiver.requests:
        row = found.pop(request.body["user_id"])
        assert request.key == str(row["notification_id"])
        assert request.body == {"notification_id": str(row["notification_id"]), **row["payload"]}
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["X-Amzn-Trace-Id"] == "Root=1-abc-def"
        assert request.path == "/hook?of=test"
    assert found == {}


def test_the_function_works_with_its_event_file(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """S2, O7: it stops when nothing is due; the default sender writes a line for each; metrics are written."""
    add(database_url, 3)
    runtime = DeliveryRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url})
    handler = WorkerHandler("deliver_notifications", lambda _: runtime)
    asked = json.loads((ROOT / "infra/events/deliver_notifications.json").read_text())
    assert handler(asked, None)["sent"] == 3
    runtime.close()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len([line for line in lines if line.get("message") == "notification delivered"]) == 3
    assert [line["NotificationsSent"] for line in lines if "NotificationsSent" in line] == [[3.0]]


_NOWHERE = "127.0.0.1:1"


def test_a_commit_wakes_the_worker(database_url: str, rows: Rows) -> None:
    """It would not look for a minute by itself, and listens on an address of its own."""
    here = urlsplit(database_url).netloc.rpartition("@")[2]
    elapsed = _time_to_sent(database_url, rows, NOTIFICATION_DELIVERY_POLL_INTERVAL="1m", DATABASE_LISTEN_HOST=here)
    assert elapsed < 5


def test_without_a_wake_up_the_worker_polls(database_url: str, rows: Rows) -> None:
    """Switched off, or out of reach: a poll interval later it is sent all the same."""
    assert _time_to_sent(database_url, rows, NOTIFICATION_DELIVERY_WAKEUP="false") < 5
    rows.execute("DELETE FROM notifications")
    assert _time_to_sent(database_url, rows, DATABASE_LISTEN_HOST=_NOWHERE) < 5


def _time_to_sent(database_url: str, rows: Rows, **environ: str) -> float:
    """From the commit of a notification to its sending by a worker that has been idle."""
    runtime = DeliveryRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url, **environ})
    over = False
    worker = threading.Thread(target=lambda: runtime.run(Budget(1.0, clock=lambda: 2.0 if over else 0.0)), daemon=True)
    worker.start()
    # Idle: it has looked at least once, and listens if it can.
    idle = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'grantwire-delivery%' AND state = 'idle'"
    _until(lambda: bool(rows.execute(idle).fetchall()))
    if environ.get("DATABASE_LISTEN_HOST", _NOWHERE) != _NOWHERE:
        listening = """SELECT FROM pg_stat_activity WHERE query = 'LISTEN "notifications"' AND state = 'idle'"""
        _until(lambda: bool(rows.execute(listening).fetchall()))
    started = time.monotonic()
    add(database_url)
    _until(lambda: bool(rows.execute("SELECT FROM notifications WHERE status = 'SENT'").fetchall()))
    elapsed = time.monotonic() - started
    over = True
    add(database_url)  # wakes it, so that it sees that it is over
    worker.join(timeout=20)
    runtime.close()
    return elapsed


def _row(rows: Rows) -> dict[str, Any]:
    (row,) = rows.execute("SELECT * FROM notifications").fetchall()
    return row


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
