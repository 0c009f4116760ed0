"""N5, N6: a row or message that the database refuses by itself never holds back its neighbours.

A trigger stands for whatever may be wrong with one row. What every row meets is the fault of the system: nothing is
given up.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import SystemFaultError
from grantwire.notifications import bridge, events
from grantwire.runtime.bridge import BridgeRuntime
from grantwire.runtime.delivery import DeliveryRuntime
from grantwire.workers.budget import Budget
from tests.support.dead_letters import Scene
from tests.support.workers.bridge_stream import Stream, drain, event
from tests.support.workers.relay_support import drain as relay_until_idle
from tests.support.workers.relay_support import enqueue_many, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grantwire.notifications.events import Event
    from tests.integration.conftest import Rows

# Raises P0001, which is in none of the classes that are known to be the data's or the system's.
_TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse();
"""


def refuse(rows: Rows, table: str, condition: str, operation: str = "INSERT") -> None:
    """From now on no row of `table` may be written that meets `condition`."""
    rows.execute(_TRIGGER.format(operation=operation, table=table, condition=condition))


def allow(rows: Rows, table: str) -> None:
    """Take the trigger away."""
    rows.execute(f"DROP TRIGGER refuse ON {table}; DROP FUNCTION refuse()")


@pytest.fixture
def impatient(environ: dict[str, str]) -> dict[str, str]:
    """An environment in which a message is a dead letter after two deliveries."""
    return environ | {"NOTIFICATION_NATS_ACK_WAIT": "200ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}


@pytest.fixture
def stream(impatient: dict[str, str]) -> Iterator[Stream]:
    """The event stream."""
    with Stream(impatient) as stream:
        yield stream


def test_one_refused_event_does_not_hold_back_twenty_neighbours(
    impatient: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5: they are recorded at once; it is returned with delay, and a dead letter only at max-deliver."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(*(event(user_id=f"u{number}") for number in range(10)), event(user_id="bad"))
    stream.publish(*(event(user_id=f"u{number}") for number in range(10, 20)))
    assert drain(impatient) == {"recorded": 20, "duplicates": 0, "terminated": 0, "returned": 1}
    assert _users(rows) == {f"u{number}" for number in range(20)}
    assert stream.consumer().num_ack_pending == 1
    assert stream.advisories() == []

    def given_up() -> bool:
        drain(impatient)
        return len(stream.advisories()) == 1

    until("JetStream gives up on the one", given_up)
    (advisory,) = stream.advisories()
    assert (advisory["type"].rpartition(".")[2], advisory["stream_seq"]) == ("max_deliver", 11)
    assert len(_users(rows)) == 20


def test_one_refused_event_that_is_allowed_again_is_recorded(
    impatient: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5: any other error may pass, so the message comes again."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(event(user_id="good"), event(user_id="bad"))
    assert drain(impatient)["returned"] == 1
    allow(rows, "notifications")
    until("it is recorded", lambda: drain(impatient)["recorded"] == 1)
    assert _users(rows) == {"good", "bad"}


def test_an_error_that_every_event_meets_is_the_systems(
    impatient: dict[str, str], stream: Stream, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """N6: however long it lasts, nothing is terminated and nothing is a dead letter; the worker waits, and alarms."""
    refuse(rows, "notifications", "true")
    stream.publish(*(event(user_id=f"u{number}") for number in range(5)))
    with pytest.raises(SystemFaultError):
        drain(impatient)
    ending = threading.Event()
    runtime = BridgeRuntime.build(impatient)
    result: list[dict[str, Any]] = []
    budget = Budget(1.0, clock=lambda: 2.0 if ending.is_set() else 0.0)
    worker = threading.Thread(target=lambda: result.append(runtime.run(budget)))
    worker.start()
    time.sleep(1.2)  # longer than ack-wait x max-deliver
    assert stream.advisories() == []
    assert _users(rows) == set()
    allow(rows, "notifications")
    until("all are recorded", lambda: len(_users(rows)) == 5)
    ending.set()
    worker.join()
    runtime.close()
    assert (result[0]["recorded"], result[0]["terminated"]) == (5, 0)
    assert stream.advisories() == []
    waiting = [line for line in _lines(capsys) if line.get("message") == "dependency unavailable, retrying"]
    assert {(line["worker"], line["level"]) for line in waiting} == {("bridge_events", "ERROR")}


def test_one_event_alone_is_told_from_a_system_that_takes_none(
    impatient: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """N5, N6: with no neighbour to compare with, an event that is certainly valid is tried."""
    refuse(rows, "notifications", "NEW.user_id = 'bad'")
    stream.publish(event(user_id="bad"))
    assert drain(impatient)["returned"] == 1
    allow(rows, "notifications")
    rows.execute("ALTER TABLE notifications ADD CONSTRAINT none CHECK (version > 1000) NOT VALID")
    stream.publish(event(user_id="good"))
    with pytest.raises(SystemFaultError, match="nothing can be written"):
        drain(impatient)
    assert rows.execute("SELECT 1 FROM notifications").fetchall() == []


def test_a_schema_that_is_missing_terminates_nothing(impatient: dict[str, str], stream: Stream, rows: Rows) -> None:
    """N6: class 42 is the system's, also when it begins after the fetch."""
    stream.publish(event())
    rows.execute("ALTER TABLE notifications RENAME COLUMN trace_id TO trace")
    with pytest.raises(SystemFaultError):
        drain(impatient)
    rows.execute("ALTER TABLE notifications RENAME COLUMN trace TO trace_id")
    until("it is recorded", lambda: drain(impatient)["recorded"] == 1)
    assert stream.advisories() == []


def test_a_message_that_shows_a_bug_of_ours_does_not_hold_back_its_neighbours(
    impatient: dict[str, str], stream: Stream, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N5: whatever decoding it raises, the others are recorded; it is returned, for a version that can read it."""

    def decode(data: bytes, headers: Mapping[str, str]) -> Event:
        if b"bad" in data:
            raise ZeroDivisionError
        return bridge_decode(data, headers)

    bridge_decode = events.decode
    monkeypatch.setattr(bridge, "decode", decode)
    stream.publish(event(user_id="good"), event(user_id="bad"), event(user_id="better"))
    assert drain(impatient) == {"recorded": 2, "duplicates": 0, "terminated": 0, "returned": 1}
    monkeypatch.setattr(bridge, "decode", bridge_decode)
    until("it is recorded", lambda: drain(impatient)["recorded"] == 1)
    assert _users(rows) == {"good", "bad", "better"}


def test_one_refused_advisory_does_not_hold_back_its_neighbours(impatient: dict[str, str], rows: Rows) -> None:
    """Q1, N5: the others are recorded, and it stays in the stream of advisories."""
    with Scene(impatient) as scene:
        sequences = []
        for _ in range(3):
            scene.publish(b"poison", {})
            sequences.append(scene.terminate("no event"))
        scene.await_advisories(3)
        refuse(rows, "notification_nats_dlq", f"NEW.stream_seq = {sequences[1]}")
        assert scene.record() | {"processed": 0} == {
            "recorded": 2,
            "duplicates": 0,
            "terminated": 0,
            "returned": 1,
            "processed": 0,
        }
        kept = rows.execute("SELECT stream_seq FROM notification_nats_dlq ORDER BY 1").fetchall()
    assert [row["stream_seq"] for row in kept] == [sequences[0], sequences[2]]


def test_one_outcome_that_cannot_be_written_does_not_hold_back_the_others(environ: dict[str, str], rows: Rows) -> None:
    """O2: its lease runs out; the relay completes the rest and lives on."""
    enqueue_many(rows, aggregates=5, each=1)
    refuse(rows, "outbox_events", "NEW.status = 'PUBLISHED' AND NEW.aggregate_key = 'u2/item1'", "UPDATE")
    assert relay_until_idle(environ)["published"] == 4
    found = rows.execute("SELECT aggregate_key, status FROM outbox_events ORDER BY 1").fetchall()
    assert [row["status"] for row in found] == ["PUBLISHED", "PUBLISHED", "IN_FLIGHT", "PUBLISHED", "PUBLISHED"]


def test_one_notification_that_cannot_be_completed_does_not_hold_back_the_others(
    database_url: str, environ: dict[str, str], impatient: dict[str, str], stream: Stream, rows: Rows
) -> None:
    """D1: likewise for what was sent."""
    stream.publish(*(event(user_id=f"u{number}") for number in range(5)))
    drain(impatient)
    refuse(rows, "notifications", "NEW.status = 'SENT' AND NEW.user_id = 'u2'", "UPDATE")
    runtime = DeliveryRuntime.build(environ | {"DATABASE_URL": database_url})
    try:
        assert runtime.run(Budget(time.monotonic() + 20, until_idle=True))["sent"] == 4
    finally:
        runtime.close()
    found = rows.execute("SELECT user_id FROM notifications WHERE status <> 'SENT'").fetchall()
    assert [row["user_id"] for row in found] == ["u2"]


def _users(rows: Rows) -> set[str]:
    return {row["user_id"] for row in rows.execute("SELECT user_id FROM notifications").fetchall()}


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
