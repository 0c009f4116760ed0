"""N3, N4, N5: each event becomes one notification, and an invalid message does not hold back the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import quote

import psycopg
import pytest

from grantwire.errors import InternalError, RetryableError
from grantwire.events.decoding import Event, decode
from grantwire.jetstream import connection
from grantwire.notifications import bridge
from grantwire.notifications.inbox import record_events
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.handler import WorkerHandler
from grantwire.workers.budget import Budget
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres
from tests.support.waiting import WAIT_SECONDS, until
from tests.support.workers.bridge_stream import Stream, drain, event

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

pytestmark = newest_postgres


def is_settled(stream: Stream) -> bool:
    """Return whether no message waits for delivery or acknowledgement."""
    info = stream.consumer_info()
    return (info.num_ack_pending, info.num_pending) == (0, 0)


def test_bridge_writes_its_consumer_lag(
    environ: dict[str, str], stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """G7: an alarm watches the messages that are not acknowledged at the end of an invocation."""
    stream.publish(event(), event(user_id="u_failing"), event())

    def decode_or_fail(data: bytes, headers: dict[str, str]) -> Event:
        if b"u_failing" in data:
            raise ZeroDivisionError
        return decode(data, headers)

    runtime = BridgeRuntime.build(environ)
    handler = WorkerHandler("bridge_events", lambda _: runtime)
    with mock.patch("grantwire.notifications.bridge.decode", decode_or_fail):
        assert handler({"budget": "3s", "until": "idle"}, None)["returned"] == 1
    runtime.close()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ConsumerLag"] for line in lines if "ConsumerLag" in line] == [[1]]


def test_event_becomes_inbox_row_and_notification(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N4: the notification has all fields of the event and the trace id of the message."""
    sent = event(version=12, event_type="EntitlementRevoked", user_id="u_ü")
    stream.publish(sent, trace_id=quote("Wurzel/ä %"))
    assert drain(environ) == {"recorded": 1, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 0}
    (notification,) = rows.execute("SELECT * FROM notifications").fetchall()
    assert (str(notification["event_id"]), notification["event_type"], notification["user_id"]) == (
        sent.event_id,
        sent.event_type,
        "u_ü",
    )
    assert (notification["stock_keeping_unit"], notification["version"], notification["status"]) == (
        "item1",
        12,
        "PENDING",
    )
    assert notification["trace_id"] == "Wurzel/ä %"
    assert notification["next_retry_at"] == notification["created_at"]
    assert notification["payload"] == {
        "event_id": sent.event_id,
        "event_type": "EntitlementRevoked",
        "occurred_at": "2026-01-08T07:10:00.000000Z",
        "user_id": "u_ü",
        "stock_keeping_unit": "item1",
        "source": "purchase",
        "source_id": "p_456",
        "version": 12,
    }
    assert rows.execute("SELECT event_id FROM processed_events").fetchall() == [{"event_id": notification["event_id"]}]
    assert is_settled(stream)


def test_redelivered_event_changes_nothing_and_is_acknowledged(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N4: the event_id of the payload decides, not the Nats-Msg-Id; within a batch and later."""
    sent = event()
    stream.publish(sent, sent)
    assert drain(environ)["recorded"] == 1
    before = rows.execute("SELECT *, xmin FROM notifications").fetchall()
    stream.publish(sent)
    assert drain(environ) == {"recorded": 0, "duplicates": 1, "terminated": 0, "not_genuine": 0, "returned": 0}
    assert rows.execute("SELECT *, xmin FROM notifications").fetchall() == before
    assert is_settled(stream)


def test_event_swept_from_inbox_creates_no_second_notification(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N4: the inbox row was swept, the notification still exists."""
    sent = event()
    stream.publish(sent)
    drain(environ)
    rows.execute("DELETE FROM processed_events")
    stream.publish(sent)
    assert drain(environ)["terminated"] == 0
    assert rows.execute("SELECT count(*) AS n FROM notifications").fetchall() == [{"n": 1}]
    assert rows.execute("SELECT count(*) AS n FROM processed_events").fetchall() == [{"n": 1}]


def test_two_bridges_create_one_notification_per_event(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N4: 2,000 events and 1,000 repeats; no deadlock and no duplicate."""
    events = [event(user_id=f"u_{number}") for number in range(2000)]
    # The repeats come in reverse order, so that both bridges write the same rows in opposite orders.
    stream.publish(*events[:1000], *reversed(events[:1000]), *events[1000:])
    results = run_concurrently(2, lambda _: drain(environ | {"NOTIFICATION_NATS_FETCH": "150"}))
    assert sum(result["recorded"] for result in results) == 2000
    assert sum(result["duplicates"] for result in results) == 1000
    counted = rows.execute("SELECT count(*) AS n, count(DISTINCT event_id) AS ids FROM notifications").fetchall()
    assert counted == [{"n": 2000, "ids": 2000}]
    assert is_settled(stream)


def test_transactions_with_the_same_events_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """N4: two transactions write the same 500 events, the second in reverse order; neither is aborted."""
    for _ in range(5):
        events = [decode(event().SerializeToString(), {}) for _ in range(500)]

        def write(direction: int, events: list[Event] = events) -> int:
            with psycopg.connect(database_url) as connection:
                return len(record_events(connection, events[:: 1 - 2 * direction]))

        assert sum(run_concurrently(2, write)) == 500
    assert rows.execute("SELECT count(*) AS n FROM notifications").fetchall() == [{"n": 2500}]


def test_invalid_message_is_terminated_and_rest_of_batch_is_recorded(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5: the advisory of each invalid message contains the reason."""
    good = [event(), event()]
    stream.publish(
        good[0],
        b"\xff\xff not a protocol buffer",
        b"",
        event(event_id="42"),
        event(event_type="EntitlementPainted"),
        event(user_id=""),
        event(stock_keeping_unit=""),
        event(version=0),
        event(occurred_at=None),
        event(user_id="a\x00b"),
        event(stock_keeping_unit="a\x00b"),
        good[1],
    )
    assert drain(environ) == {"recorded": 2, "duplicates": 0, "terminated": 10, "not_genuine": 0, "returned": 0}
    recorded_ids = {str(row["event_id"]) for row in rows.execute("SELECT event_id FROM notifications")}
    assert recorded_ids == {event.event_id for event in good}
    assert is_settled(stream)
    advisories = stream.advisories()
    assert {advisory["type"] for advisory in advisories} == {"io.nats.jetstream.advisory.v1.terminated"}
    assert {advisory["stream_seq"]: advisory["reason"] for advisory in advisories} == {
        2: "not an EntitlementEvent",
        3: "event_id is not a UUID: ''",
        4: "event_id is not a UUID: '42'",
        5: "unknown event_type 'EntitlementPainted'",
        6: "user_id is missing",
        7: "stock_keeping_unit is missing",
        8: "version is missing",
        9: "occurred_at is missing",
        10: "user_id contains a NUL character",
        11: "stock_keeping_unit contains a NUL character",
    }


def test_event_refused_by_database_is_terminated_alone(environ: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N5: a constraint or type error; three bad events among 100 are found, and the rest is recorded."""
    good = [event() for _ in range(97)]
    bad = [event(user_id="u" * 129), event(stock_keeping_unit="s" * 129), event(source="a\x00b")]
    stream.publish(*good[:10], bad[0], *good[10:50], bad[1], *good[50:96], bad[2], good[96])
    assert drain(environ) == {"recorded": 97, "duplicates": 0, "terminated": 3, "not_genuine": 0, "returned": 0}
    for table in ("notifications", "processed_events"):
        recorded_ids = {str(row["event_id"]) for row in rows.execute(f"SELECT event_id FROM {table}")}  # noqa: S608
        assert recorded_ids == {event.event_id for event in good}
    reasons = sorted(advisory["reason"] for advisory in stream.advisories())
    assert len(reasons) == 3
    assert "notifications_sku_length" in reasons[0]
    assert "notifications_user_id_length" in reasons[1]
    assert "unsupported Unicode escape sequence" in reasons[2]
    assert is_settled(stream)


def test_bridge_killed_between_commit_and_acknowledgement_leaves_one_effect(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N3, N4: kill -9 after the commit; the messages are redelivered and change nothing."""
    environ |= {"NOTIFICATION_NATS_ACK_WAIT": "1s"}
    with Stream(environ):
        stream.publish(*(event() for _ in range(50)))
    command = [sys.executable, "-m", "tests.support.workers.bridge_worker", "60", "die-before-ack"]
    killed = subprocess.run(command, env=worker_environ(environ), cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert rows.execute("SELECT count(*) AS n FROM notifications").fetchall() == [{"n": 50}]
    assert stream.consumer_info().num_ack_pending == 50
    before = rows.execute("SELECT *, xmin FROM notifications ORDER BY event_id").fetchall()
    duplicates = 0

    def are_redelivered() -> bool:
        nonlocal duplicates
        duplicates += drain(environ)["duplicates"]
        return duplicates >= 50

    until("JetStream delivers all again", are_redelivered)
    assert duplicates == 50
    assert rows.execute("SELECT *, xmin FROM notifications ORDER BY event_id").fetchall() == before
    assert is_settled(stream)


def worker_environ(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of a worker process."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, **environ}


def test_nothing_is_fetched_while_database_is_unreachable(environ: dict[str, str], stream: Stream) -> None:
    """N6: the bridge waits until its budget ends, and JetStream delivers nothing."""
    stream.publish(event())
    unreachable = environ | {"DATABASE_URL": "postgresql://x:x@127.0.0.1:1/x"}
    with pytest.raises(RetryableError):
        drain(unreachable)
    runtime = BridgeRuntime.build(unreachable)
    assert runtime.run(Budget(time.monotonic() + 0.5))["returned"] == 0
    runtime.close()
    assert stream.delivery_count() == 0


def test_missing_schema_is_reported_before_anything_is_fetched(
    environ: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N6: a deployment without its migration uses up no delivery."""
    stream.publish(event())
    rows.execute("ALTER TABLE processed_events RENAME TO renamed")
    with pytest.raises(InternalError, match="processed_events"):
        drain(environ)
    assert stream.delivery_count() == 0


def test_bridge_waits_while_nats_is_unreachable(environ: dict[str, str]) -> None:
    """With `until_idle` it raises RetryableError; otherwise it waits until its budget ends."""
    unreachable = environ | {"NATS_URL": "nats://127.0.0.1:1", "NATS_CONNECT_TIMEOUT": "200ms"}
    with pytest.raises(RetryableError):
        drain(unreachable)
    runtime = BridgeRuntime.build(unreachable)
    assert runtime.run(Budget(time.monotonic() + 0.3))["recorded"] == 0
    runtime.close()


def test_waiting_bridge_records_new_event_immediately(
    environ: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull of a waiting bridge ends when a message arrives; otherwise it would take longer than the test waits."""
    monkeypatch.setattr(bridge, "_MAX_PULL_SECONDS", 600.0)
    runtime = BridgeRuntime.build(environ)
    is_over = threading.Event()
    budget = Budget(1000.0, clock=lambda: 2000.0 if is_over.is_set() else 0.0)
    worker = threading.Thread(target=lambda: runtime.run(budget), daemon=True)
    worker.start()
    until("the bridge waits", lambda: stream.consumer_info().num_waiting)
    stream.publish(event())
    until("the event is recorded", lambda: rows.execute("SELECT FROM notifications").fetchall())
    is_over.set()
    stream.publish(event())  # ends the pull, so that the bridge notices the end of its budget
    worker.join(timeout=WAIT_SECONDS)
    assert not worker.is_alive()
    runtime.close()


def test_function_handles_its_event_file(
    environ: dict[str, str], stream: Stream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, O7: it stops when it is idle; the next invocation reuses the connections; metrics are written."""
    request = json.loads((ROOT / "infra/events/bridge_events.json").read_text())
    runtime = BridgeRuntime.build(environ)
    handler = WorkerHandler("bridge_events", lambda _: runtime)
    opened = mock.Mock(wraps=connection._open)  # noqa: SLF001 - the function that opens a connection
    monkeypatch.setattr(connection, "_open", opened)
    stream.publish(event(), b"not an event")
    assert handler(request, None) == {"recorded": 1, "duplicates": 0, "terminated": 1, "not_genuine": 0, "returned": 0}
    stream.publish(event())
    assert handler(request, None)["recorded"] == 1
    assert opened.call_count == 1
    runtime.close()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (written,) = [line for line in lines if "MessagesTerminated" in line]
    assert (written["MessagesTerminated"], written["NotificationsCreated"]) == ([1.0], [1.0])
