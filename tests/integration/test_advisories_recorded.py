"""Q1: messages that JetStream stops delivering are recorded with a copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from functions.record_advisories.handler import handler
from grantwire.errors import RetryableError
from grantwire.wiring.lazy import LazyRuntime
from grantwire.wiring.workers.record_advisories import RecorderRuntime
from grantwire.workers.budget import Budget
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import Pipeline, budget, event_bytes, event_headers
from tests.support.nats_users import configure
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

pytestmark = newest_postgres


@pytest.fixture
def pipeline(environ: dict[str, str]) -> Iterator[Pipeline]:
    """A stream and its workers, with a short ack wait and two deliveries."""
    quick = {"NOTIFICATION_NATS_ACK_WAIT": "300ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}
    with Pipeline(environ | quick) as pipeline:
        yield pipeline


def test_advisory_sent_while_no_recorder_ran_is_recorded(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: the stream keeps the advisory; the dead letter has everything that a redrive needs."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    sequence = pipeline.publish(payload, event_headers(event_id, trace_id="1-abc"))
    assert pipeline.terminate_next("cannot be read") == sequence
    pipeline.wait_for_advisories(1)
    assert pipeline.run_recorder() == {
        "recorded": 1,
        "duplicates": 0,
        "terminated": 0,
        "refused": 0,
        "returned": 0,
        "processed": 0,
    }
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["stream"], dead_letter["consumer"], dead_letter["stream_seq"]) == (
        pipeline.stream,
        "bridge",
        sequence,
    )
    assert (dead_letter["kind"], dead_letter["deliveries"], dead_letter["reason"]) == (
        "MSG_TERMINATED",
        1,
        "cannot be read",
    )
    assert (dead_letter["payload"], dead_letter["subject"]) == (payload, pipeline.topology.events.subject)
    assert (dead_letter["event_id"], dead_letter["headers"]["trace_id"]) == (event_id, "1-abc")
    assert (dead_letter["status"], dead_letter["redrive_count"], dead_letter["origin"]) == ("OPEN", 0, None)
    assert dead_letter["event_time"] <= dead_letter["message_time"] <= dead_letter["recorded_at"]


def test_message_that_reached_max_deliver_is_recorded(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: the bridge crashes at each delivery; JetStream sends the advisory with the next pull."""
    event_id, sequence = pipeline.publish_event()
    _exceed_max_deliver(pipeline, monkeypatch)
    assert pipeline.run_recorder()["recorded"] == 1
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["kind"], dead_letter["stream_seq"], dead_letter["deliveries"]) == (
        "MAX_DELIVERIES",
        sequence,
        2,
    )
    assert (dead_letter["payload"] is not None, dead_letter["event_id"], dead_letter["reason"]) == (
        True,
        event_id,
        None,
    )


def test_recording_advisory_twice_leaves_one_row(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: even if the message has left the stream meanwhile; a new stream that counts from 1 is another one."""
    _, sequence = pipeline.publish_event()
    body = _advisory(pipeline, sequence)
    pipeline.publish_advisory(body)
    pipeline.publish_advisory(body)
    assert pipeline.run_recorder() | {"processed": 0} == {
        "recorded": 1,
        "duplicates": 1,
        "terminated": 0,
        "refused": 0,
        "returned": 0,
        "processed": 0,
    }
    _purge(pipeline)
    pipeline.publish_advisory(body)
    assert pipeline.run_recorder()["duplicates"] == 1
    (dead_letter,) = _dead_letters(rows)
    assert dead_letter["payload"] is not None
    rows.execute("UPDATE notification_nats_dlq SET message_time = message_time - interval '1 day'")
    pipeline.runner.run(pipeline.nats.jetstream.delete_stream(pipeline.stream))
    configure(pipeline.environ)
    assert pipeline.publish_event()[1] == sequence
    pipeline.publish_advisory(_advisory(pipeline, sequence))
    assert pipeline.run_recorder()["recorded"] == 1
    assert len(_dead_letters(rows)) == 2


def test_message_deleted_from_stream_is_recorded_without_copy(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: the advisory is recorded even if the message expired first."""
    _, sequence = pipeline.publish_event()
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    _purge(pipeline)
    assert pipeline.run_recorder()["recorded"] == 1
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["stream_seq"], dead_letter["payload"], dead_letter["headers"], dead_letter["event_id"]) == (
        sequence,
        None,
        None,
        None,
    )


def test_message_of_recreated_stream_is_not_copied(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: a message that is newer than its advisory is a different message."""
    _, sequence = pipeline.publish_event()
    pipeline.publish_advisory(_advisory(pipeline, sequence, timestamp="2020-01-01T00:00:00.123456789Z"))
    assert pipeline.run_recorder()["recorded"] == 1
    (dead_letter,) = _dead_letters(rows)
    assert dead_letter["payload"] is None


def test_copy_is_kept_after_stream_is_purged(pipeline: Pipeline, rows: Rows) -> None:
    """Q1, Q4: the message is copied when it is recorded, so the stream may expire."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    pipeline.publish(payload, event_headers(event_id))
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    pipeline.run_recorder()
    _purge(pipeline)
    (dead_letter,) = _dead_letters(rows)
    assert dead_letter["payload"] == payload


@pytest.mark.parametrize(
    "body",
    [
        b"\xff not json",
        b"[]",
        b"{}",
        b'{"type": "io.nats.jetstream.advisory.v1.nak", "stream": "S", "consumer": "c", "stream_seq": 1}',
        b'{"type": "io.nats.jetstream.advisory.v1.terminated", "stream": "S", "consumer": "c", "stream_seq": 1e99}',
    ],
)
def test_invalid_advisory_is_terminated_and_others_are_recorded(
    pipeline: Pipeline, rows: Rows, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    """Q1: it is terminated with a log line."""
    _, sequence = pipeline.publish_event()
    pipeline.publish_advisory(body)
    pipeline.publish_advisory(_advisory(pipeline, sequence))
    assert pipeline.run_recorder() == {
        "recorded": 1,
        "duplicates": 0,
        "terminated": 1,
        "refused": 0,
        "returned": 0,
        "processed": 0,
    }
    assert "invalid advisory" in capsys.readouterr().out
    pipeline.wait_until_acknowledged()
    assert len(_dead_letters(rows)) == 1


@pytest.mark.parametrize("kind", ["MAX_DELIVERIES", "MSG_TERMINATED"])
@pytest.mark.parametrize("forged", [{"stream": "PAYMENTS"}, {"consumer": "reader"}, {"stream": "A", "consumer": "b"}])
def test_foreign_advisory_is_refused_and_others_are_recorded(
    pipeline: Pipeline, rows: Rows, capsys: pytest.CaptureFixture[str], kind: str, forged: dict[str, str]
) -> None:
    """G1: whatever subject it came by, an advisory about another stream or consumer becomes no dead letter."""
    _, sequence = pipeline.publish_event()
    pipeline.publish_advisory(_advisory(pipeline, sequence, **forged), kind)
    pipeline.publish_advisory(_advisory(pipeline, sequence))
    result = pipeline.run_recorder()
    assert (result["recorded"], result["refused"], result["returned"]) == (1, 1, 0)
    assert "foreign advisory refused" in capsys.readouterr().out
    pipeline.wait_until_acknowledged()
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["stream"], dead_letter["consumer"]) == (pipeline.stream, "bridge")


def test_advisories_of_other_consumers_are_not_stored(pipeline: Pipeline) -> None:
    """G1: an outside reader that terminates a message creates no dead letter of Grantwire."""
    _, sequence = pipeline.publish_event()
    body = _advisory(pipeline, sequence, consumer="reader")
    with pytest.raises(RetryableError, match="no stream listens"):
        pipeline.publish_advisory(body, durable="reader")


def test_unstorable_characters_are_replaced(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: a NUL in a reason or header does not prevent a dead letter; the payload is kept byte for byte."""
    sequence = pipeline.publish(b"\x00\xff", {"odd": "a\x00b", "event_id": "not-a-uuid", "occurred_at": "never"})
    pipeline.publish_advisory(_advisory(pipeline, sequence, reason="a\x00b\ud800"))
    assert pipeline.run_recorder()["recorded"] == 1
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["payload"], dead_letter["event_id"]) == (b"\x00\xff", None)
    assert (dead_letter["reason"], dead_letter["headers"]["odd"]) == ("a\ufffdb\ufffd", "a\ufffdb")
    assert dead_letter["event_time"] == dead_letter["message_time"]


def test_advisory_refused_by_postgresql_does_not_hold_back_others(
    pipeline: Pipeline, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a bug: logged as an error, redelivered later, and not lost."""
    first, second = pipeline.publish_event()[1], pipeline.publish_event()[1]
    rows.execute(f"ALTER TABLE notification_nats_dlq ADD CONSTRAINT odd CHECK (stream_seq <> {first})")
    pipeline.publish_advisory(_advisory(pipeline, first))
    pipeline.publish_advisory(_advisory(pipeline, second))
    assert pipeline.run_recorder()["recorded"] == 1
    assert "could not record dead letter" in capsys.readouterr().out
    assert [dead_letter["stream_seq"] for dead_letter in _dead_letters(rows)] == [second]
    info = pipeline.runner.run(
        pipeline.nats.jetstream.consumer_info(pipeline.topology.advisories.stream, "terminated-recorder")
    )
    assert info.num_ack_pending == 1


def test_recorder_killed_between_commit_and_ack_leaves_one_row(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: the advisory is redelivered to the next recorder and changes nothing."""
    pipeline.publish_event()
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.recorder_stops_before_ack"],
        env=os.environ | pipeline.environ | {"PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    with worker.stdout as output:
        assert any(line == "committed\n" for line in output)
        worker.kill()
    worker.wait()
    (before,) = _dead_letters(rows)
    repeated = 0
    while not repeated:
        repeated = pipeline.run_recorder()["duplicates"]
    assert _dead_letters(rows) == [before]
    pipeline.wait_until_acknowledged()


def test_concurrent_recorders_leave_one_row_per_advisory(pipeline: Pipeline, rows: Rows) -> None:
    """Q1: invocations may overlap."""
    for _ in range(20):
        pipeline.publish_event()
        pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(20)

    def record(_: int) -> int:
        recorder = RecorderRuntime.build(pipeline.environ)
        try:
            return int(recorder.run(budget())["recorded"])
        finally:
            recorder.close()

    assert sum(run_concurrently(2, record)) == 20
    assert len(_dead_letters(rows)) == 20


def test_nothing_is_lost_while_postgresql_is_down(environ: dict[str, str], server: PostgresServer) -> None:
    """Q1: nothing is fetched; the same recorder records the advisory when the server is back."""
    with Pipeline(environ | {"DATABASE_URL": server.url()}) as pipeline:
        pipeline.publish_event()
        pipeline.terminate_next("bad")
        pipeline.wait_for_advisories(1)
        server.stop()
        try:
            with pytest.raises(RetryableError):
                pipeline.run_recorder()
            counts = pipeline.recorder.run(Budget(budget(1).deadline))
            assert counts["recorded"] == 0
            infos = pipeline.runner.run(pipeline.nats.jetstream.consumers_info(pipeline.topology.advisories.stream))
            assert [(info.num_ack_pending, info.num_redelivered) for info in infos] == [(0, 0), (0, 0)]
        finally:
            server.start()
        assert pipeline.run_recorder()["recorded"] == 1


def test_dead_letter_of_processed_event_is_closed_automatically(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: JetStream counts deliveries, not effects; the last delivery may have had its effect."""
    early, _ = pipeline.publish_event()
    late, _ = pipeline.publish_event()
    third, _ = pipeline.publish_event()
    _exceed_max_deliver(pipeline, monkeypatch, count=3)
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (early,))
    assert pipeline.run_recorder()["processed"] == 1
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (late,))
    assert pipeline.run_recorder()["processed"] == 1
    assert {dead_letter["event_id"]: dead_letter["status"] for dead_letter in _dead_letters(rows)} == {
        early: "PROCESSED",
        late: "PROCESSED",
        third: "OPEN",
    }


def test_terminated_message_stays_open_if_header_names_processed_event(pipeline: Pipeline, rows: Rows) -> None:
    """Its payload was refused, so the processed event came from another message."""
    event_id, _ = pipeline.publish_event()
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (event_id,))
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    assert pipeline.run_recorder() == {
        "recorded": 1,
        "duplicates": 0,
        "terminated": 0,
        "refused": 0,
        "returned": 0,
        "processed": 0,
    }
    assert _dead_letters(rows)[0]["status"] == "OPEN"


def test_function_records_within_its_budget(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """S2: with the budget of the event file; the metric of the alarm is written."""
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: pipeline.recorder))
    pipeline.publish_event()
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    event = json.loads((ROOT / "infra" / "events" / "record_advisories.json").read_text())
    assert handler(event, None)["recorded"] == 1
    assert '"DeadLettersRecorded":[1.0]' in capsys.readouterr().out.replace(" ", "")
    assert len(_dead_letters(rows)) == 1


def _dead_letters(rows: Rows) -> list[dict[str, Any]]:
    return rows.execute("SELECT * FROM notification_nats_dlq ORDER BY recorded_at, stream_seq").fetchall()


def _advisory(pipeline: Pipeline, sequence: int, **fields: Any) -> bytes:
    return json.dumps(
        {
            "type": "io.nats.jetstream.advisory.v1.terminated",
            "id": uuid.uuid4().hex,
            "timestamp": datetime.now(UTC).isoformat(),
            "stream": pipeline.stream,
            "consumer": "bridge",
            "stream_seq": sequence,
            "deliveries": 1,
        }
        | fields
    ).encode()


def _purge(pipeline: Pipeline) -> None:
    pipeline.runner.run(pipeline.nats.jetstream.purge_stream(pipeline.stream))


def _exceed_max_deliver(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    """Run a bridge that crashes at each delivery, until JetStream sends `count` advisories."""
    with monkeypatch.context() as broken:
        broken.setattr("grantwire.notifications.bridge.decode", _crash)
        pipeline.run_bridge_until_max_deliver(count)


def _crash(*_: object) -> None:
    raise MemoryError("the process dies")
