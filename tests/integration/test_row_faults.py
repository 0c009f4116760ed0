"""N5, N6: a row or message that the database refuses does not hold back the others.

A trigger simulates an error of one row. An error of every row is a system fault, and creates no dead letter.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import SystemFaultError
from grantwire.events import decoding as events
from grantwire.notifications import bridge
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.deliver_notifications import DeliveryRuntime
from grantwire.workers.budget import Budget
from tests.support.dead_letters import Pipeline
from tests.support.servers import newest_postgres
from tests.support.waiting import until, until_idle
from tests.support.workers.bridge_stream import Stream, drain, event
from tests.support.workers.relay_support import drain as relay_until_idle
from tests.support.workers.relay_support import enqueue_many

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grantwire.events.decoding import Event
    from tests.integration.conftest import Rows

pytestmark = newest_postgres

# Raises P0001, which belongs neither to the classes of data errors nor to those of system faults.
_TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse();
"""


def refuse(rows: Rows, table: str, condition: str, operation: str = "INSERT") -> None:
    """Make PostgreSQL refuse rows of `table` that meet `condition`."""
    rows.execute(_TRIGGER.format(operation=operation, table=table, condition=condition))


def allow(rows: Rows, table: str) -> None:
    """Drop the trigger."""
    rows.execute(f"DROP TRIGGER refuse ON {table}; DROP FUNCTION refuse()")


@pytest.fixture
def two_deliveries(environ: dict[str, str]) -> dict[str, str]:
    """An environment in which a message becomes a dead letter after two deliveries."""
    return environ | {"NOTIFICATION_NATS_ACK_WAIT": "1s", "NOTIFICATION_NATS_MAX_DELIVER": "2"}


@pytest.fixture
def stream(two_deliveries: dict[str, str]) -> Iterator[Stream]:
    """The event stream."""
    with Stream(two_deliveries) as stream:
        yield stream


def test_refused_event_does_not_hold_back_twenty_others(
    two_deliveries: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5: the others are recorded; it is returned with a delay, and becomes a dead letter only at max-deliver."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(*(event(user_id=f"u{number}") for number in range(10)), event(user_id="bad"))
    stream.publish(*(event(user_id=f"u{number}") for number in range(10, 20)))
    assert drain(two_deliveries) == {"recorded": 20, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 1}
    assert _users(rows) == {f"u{number}" for number in range(20)}
    assert stream.consumer_info().num_ack_pending == 1
    assert stream.advisories() == []

    def has_advisory() -> bool:
        drain(two_deliveries)
        return len(stream.advisories()) == 1

    until("JetStream reaches max-deliver", has_advisory)
    (advisory,) = stream.advisories()
    assert (advisory["type"].rpartition(".")[2], advisory["stream_seq"]) == ("max_deliver", 11)
    assert len(_users(rows)) == 20


def test_refused_event_is_recorded_when_allowed_again(
    two_deliveries: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5: an error of unknown cause may be temporary, so the message is redelivered."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(event(user_id="good"), event(user_id="bad"))
    assert drain(two_deliveries)["returned"] == 1
    allow(rows, "notifications")
    until("it is recorded", lambda: drain(two_deliveries)["recorded"] == 1)
    assert _users(rows) == {"good", "bad"}


def test_error_of_every_event_is_a_system_fault(
    two_deliveries: dict[str, str], stream: Stream, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """N6: nothing is terminated or becomes a dead letter; the worker waits and logs errors, which raises an alarm."""
    refuse(rows, "notifications", "true")
    stream.publish(*(event(user_id=f"u{number}") for number in range(5)))
    with pytest.raises(SystemFaultError):
        drain(two_deliveries)
    is_over = threading.Event()
    runtime = BridgeRuntime.build(two_deliveries)
    results: list[dict[str, Any]] = []
    budget = Budget(1.0, clock=lambda: 2.0 if is_over.is_set() else 0.0)
    worker = threading.Thread(target=lambda: results.append(runtime.run(budget)))
    worker.start()
    time.sleep(2.4)  # longer than ack-wait x max-deliver
    assert stream.advisories() == []
    assert _users(rows) == set()
    allow(rows, "notifications")
    until("all are recorded", lambda: len(_users(rows)) == 5)
    is_over.set()
    worker.join()
    runtime.close()
    assert (results[0]["recorded"], results[0]["terminated"]) == (5, 0)
    assert stream.advisories() == []
    retrying = [line for line in _log_lines(capsys) if line.get("message") == "dependency unavailable, retrying"]
    assert {(line["worker"], line["level"]) for line in retrying} == {("bridge_events", "ERROR")}


def test_single_event_is_compared_with_probe_event(two_deliveries: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N5, N6: with no other event in the batch, the bridge tries an event that is certainly valid."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(event(user_id="bad"))
    assert drain(two_deliveries)["returned"] == 1
    allow(rows, "notifications")
    rows.execute("ALTER TABLE notifications ADD CONSTRAINT none CHECK (version > 1000) NOT VALID")
    stream.publish(event(user_id="good"))
    with pytest.raises(SystemFaultError, match="nothing can be written"):
        drain(two_deliveries)
    assert rows.execute("SELECT 1 FROM notifications").fetchall() == []


def test_missing_column_terminates_nothing(two_deliveries: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N6: an error of class 42 is a system fault, even if it occurs after the fetch."""
    stream.publish(event())
    rows.execute("ALTER TABLE notifications RENAME COLUMN trace_id TO trace")
    with pytest.raises(SystemFaultError):
        drain(two_deliveries)
    rows.execute("ALTER TABLE notifications RENAME COLUMN trace TO trace_id")
    until("it is recorded", lambda: drain(two_deliveries)["recorded"] == 1)
    assert stream.advisories() == []


def test_message_that_triggers_bug_does_not_hold_back_others(
    two_deliveries: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N5: the others are recorded; it is returned, and a version without the bug records it."""

    def decode(data: bytes, headers: Mapping[str, str]) -> Event:
        if b"poison" in data:
            raise ZeroDivisionError
        return bridge_decode(data, headers)

    bridge_decode = events.decode
    monkeypatch.setattr(bridge, "decode", decode)
    stream.publish(event(user_id="good"), event(user_id="poison"), event(user_id="better"))
    assert drain(two_deliveries) == {"recorded": 2, "duplicates": 0, "terminated": 0, "not_genuine": 0, "returned": 1}
    monkeypatch.setattr(bridge, "decode", bridge_decode)
    until("it is recorded", lambda: drain(two_deliveries)["recorded"] == 1)
    assert _users(rows) == {"good", "poison", "better"}


def test_refused_advisory_does_not_hold_back_others(two_deliveries: dict[str, str], rows: Rows) -> None:
    """Q1, N5: the others are recorded, and it stays in the stream of advisories."""
    with Pipeline(two_deliveries) as pipeline:
        sequences = []
        for _ in range(3):
            pipeline.publish(b"not an event", {})
            sequences.append(pipeline.terminate_next("no event"))
        pipeline.wait_for_advisories(3)
        refuse(rows, "notification_nats_dlq", f"NEW.stream_seq = {sequences[1]}")
        assert pipeline.run_recorder() | {"processed": 0} == {
            "recorded": 2,
            "duplicates": 0,
            "terminated": 0,
            "refused": 0,
            "returned": 1,
            "processed": 0,
        }
        recorded = rows.execute("SELECT stream_seq FROM notification_nats_dlq ORDER BY 1").fetchall()
    assert [row["stream_seq"] for row in recorded] == [sequences[0], sequences[2]]


def test_unwritable_outbox_outcome_does_not_hold_back_others(environ: dict[str, str], rows: Rows) -> None:
    """O2: its lease expires; the relay completes the other events and continues."""
    enqueue_many(rows, aggregates=5, each=1)
    refuse(rows, "outbox_events", "NEW.status = 'PUBLISHED' AND NEW.aggregate_key = 'u2/item1'", "UPDATE")
    assert relay_until_idle(environ)["published"] == 4
    outbox_rows = rows.execute("SELECT aggregate_key, status FROM outbox_events ORDER BY 1").fetchall()
    assert [row["status"] for row in outbox_rows] == ["PUBLISHED", "PUBLISHED", "IN_FLIGHT", "PUBLISHED", "PUBLISHED"]


def test_unwritable_delivery_outcome_does_not_hold_back_others(
    database_url: str, environ: dict[str, str], two_deliveries: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """D1: the other notifications become SENT."""
    stream.publish(*(event(user_id=f"u{number}") for number in range(5)))
    drain(two_deliveries)
    refuse(rows, "notifications", "NEW.status = 'SENT' AND NEW.user_id = 'u2'", "UPDATE")
    runtime = DeliveryRuntime.build(environ | {"DATABASE_URL": database_url})
    try:
        assert runtime.run(until_idle())["sent"] == 4
    finally:
        runtime.close()
    unsent = rows.execute("SELECT user_id FROM notifications WHERE status <> 'SENT'").fetchall()
    assert [row["user_id"] for row in unsent] == ["u2"]


def _users(rows: Rows) -> set[str]:
    return {row["user_id"] for row in rows.execute("SELECT user_id FROM notifications").fetchall()}


def _log_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
