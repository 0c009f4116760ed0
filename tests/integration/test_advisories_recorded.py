"""Q1: what JetStream gives up on is written down, with a copy of the message."""

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
from grantwire.runtime.lazy import LazyRuntime
from grantwire.runtime.recorder import RecorderRuntime
from grantwire.workers.budget import Budget
from tests.support.concurrency import at_once
from tests.support.dead_letters import Scene, budget, event_bytes, event_headers
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows


@pytest.fixture
def scene(environ: dict[str, str]) -> Iterator[Scene]:
    """A stream and its workers; deliveries end quickly."""
    quick = {"NOTIFICATION_NATS_ACK_WAIT": "300ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}
    with Scene(environ | quick) as scene:
        yield scene


def test_an_advisory_that_came_while_no_recorder_ran_is_recorded(scene: Scene, rows: Rows) -> None:
    """Q1: the stream keeps it; the dead letter has everything that a redrive needs."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    sequence = scene.publish(payload, event_headers(event_id, trace_id="1-abc"))
    assert scene.terminate("cannot be read") == sequence
    scene.await_advisories(1)
    assert scene.record() == {"recorded": 1, "duplicates": 0, "terminated": 0, "returned": 0, "processed": 0}
    (letter,) = _letters(rows)
    assert (letter["stream"], letter["consumer"], letter["stream_seq"]) == (scene.stream, "bridge", sequence)
    assert (letter["kind"], letter["deliveries"], letter["reason"]) == ("MSG_TERMINATED", 1, "cannot be read")
    assert (letter["payload"], letter["subject"]) == (payload, scene.topology.events.subject)
    assert (letter["event_id"], letter["headers"]["trace_id"]) == (event_id, "1-abc")
    assert (letter["status"], letter["redrive_count"], letter["origin"]) == ("OPEN", 0, None)
    assert letter["event_time"] <= letter["message_time"] <= letter["recorded_at"]


def test_a_message_that_reached_its_delivery_limit_is_recorded(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: the bridge dies of it each time; the advisory comes with the pull after the last."""
    event_id, sequence = scene.publish_event()
    _bury(scene, monkeypatch)
    assert scene.record()["recorded"] == 1
    (letter,) = _letters(rows)
    assert (letter["kind"], letter["stream_seq"], letter["deliveries"]) == ("MAX_DELIVERIES", sequence, 2)
    assert (letter["payload"] is not None, letter["event_id"], letter["reason"]) == (True, event_id, None)


def test_recording_an_advisory_twice_leaves_one_row(scene: Scene, rows: Rows) -> None:
    """Q1: also when the message has left the stream in between; a new stream that counts from 1 is another one."""
    _, sequence = scene.publish_event()
    body = _advisory(scene, sequence)
    scene.advise(body)
    scene.advise(body)
    assert scene.record() | {"processed": 0} == {
        "recorded": 1,
        "duplicates": 1,
        "terminated": 0,
        "returned": 0,
        "processed": 0,
    }
    _purge(scene)
    scene.advise(body)
    assert scene.record()["duplicates"] == 1
    (letter,) = _letters(rows)
    assert letter["payload"] is not None
    rows.execute("UPDATE notification_nats_dlq SET message_time = message_time - interval '1 day'")
    scene.runner.run(scene.nats.jetstream.delete_stream(scene.stream))
    scene.runner.run(scene._connect())  # noqa: SLF001 - the topology anew
    assert scene.publish_event()[1] == sequence
    scene.advise(_advisory(scene, sequence))
    assert scene.record()["recorded"] == 1
    assert len(_letters(rows)) == 2


def test_a_message_that_is_gone_is_recorded_without_a_copy(scene: Scene, rows: Rows) -> None:
    """Q1: the fact is kept, even if the stream expired first."""
    _, sequence = scene.publish_event()
    scene.terminate("bad")
    scene.await_advisories(1)
    _purge(scene)
    assert scene.record()["recorded"] == 1
    (letter,) = _letters(rows)
    assert (letter["stream_seq"], letter["payload"], letter["headers"], letter["event_id"]) == (
        sequence,
        None,
        None,
        None,
    )


def test_a_message_of_a_stream_that_was_made_anew_is_not_taken_for_the_lost_one(scene: Scene, rows: Rows) -> None:
    """Q1: a message that is younger than its advisory is another message."""
    _, sequence = scene.publish_event()
    scene.advise(_advisory(scene, sequence, timestamp="2020-01-01T00:00:00.123456789Z"))
    assert scene.record()["recorded"] == 1
    (letter,) = _letters(rows)
    assert letter["payload"] is None


def test_a_copy_outlives_the_stream(scene: Scene, rows: Rows) -> None:
    """Q1, Q4: taken at once, so that the stream may expire."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    scene.publish(payload, event_headers(event_id))
    scene.terminate("bad")
    scene.await_advisories(1)
    scene.record()
    _purge(scene)
    (letter,) = _letters(rows)
    assert letter["payload"] == payload


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
def test_an_unreadable_advisory_does_not_block(
    scene: Scene, rows: Rows, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    """Q1: it is terminated with a log line, and its neighbours are recorded."""
    _, sequence = scene.publish_event()
    scene.advise(body)
    scene.advise(_advisory(scene, sequence))
    assert scene.record() == {"recorded": 1, "duplicates": 0, "terminated": 1, "returned": 0, "processed": 0}
    assert "invalid advisory" in capsys.readouterr().out
    scene.await_all_acked()
    assert len(_letters(rows)) == 1


def test_what_no_column_can_hold_is_replaced(scene: Scene, rows: Rows) -> None:
    """Q1: a NUL in a reason or a header must not make a dead letter impossible; the payload is kept byte for byte."""
    sequence = scene.publish(b"\x00\xff", {"odd": "a\x00b", "event_id": "not-a-uuid", "occurred_at": "never"})
    scene.advise(_advisory(scene, sequence, reason="a\x00b\ud800"))
    assert scene.record()["recorded"] == 1
    (letter,) = _letters(rows)
    assert (letter["payload"], letter["event_id"]) == (b"\x00\xff", None)
    assert (letter["reason"], letter["headers"]["odd"]) == ("a\ufffdb\ufffd", "a\ufffdb")
    assert letter["event_time"] == letter["message_time"]


def test_an_advisory_that_postgresql_refuses_does_not_hold_back_the_others(
    scene: Scene, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours: loud, put off, and not lost."""
    first, second = scene.publish_event()[1], scene.publish_event()[1]
    rows.execute(f"ALTER TABLE notification_nats_dlq ADD CONSTRAINT odd CHECK (stream_seq <> {first})")
    scene.advise(_advisory(scene, first))
    scene.advise(_advisory(scene, second))
    assert scene.record()["recorded"] == 1
    assert "could not record dead letter" in capsys.readouterr().out
    assert [letter["stream_seq"] for letter in _letters(rows)] == [second]
    info = scene.runner.run(scene.nats.jetstream.consumer_info(scene.topology.advisories.stream, "terminated-recorder"))
    assert info.num_ack_pending == 1


def test_a_recorder_killed_between_commit_and_ack_leaves_one_row(scene: Scene, rows: Rows) -> None:
    """Q1: the advisory is delivered again, to whoever comes next, and changes nothing."""
    scene.publish_event()
    scene.terminate("bad")
    scene.await_advisories(1)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.recorder_stops_before_ack"],
        env=os.environ | scene.environ | {"PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    with worker.stdout as output:
        assert any(line == "committed\n" for line in output)
        worker.kill()
    worker.wait()
    (before,) = _letters(rows)
    repeated = 0
    while not repeated:
        repeated = scene.record()["duplicates"]
    assert _letters(rows) == [before]
    scene.await_all_acked()


def test_two_recorders_at_once_leave_one_row_each(scene: Scene, rows: Rows) -> None:
    """Q1: schedules overlap; what one records the other passes over."""
    for _ in range(20):
        scene.publish_event()
        scene.terminate("bad")
    scene.await_advisories(20)

    def record(_: int) -> int:
        recorder = RecorderRuntime.build(scene.environ)
        try:
            return int(recorder.run(budget())["recorded"])
        finally:
            recorder.close()

    assert sum(at_once(2, record)) == 20
    assert len(_letters(rows)) == 20


def test_nothing_is_lost_while_postgresql_is_down(environ: dict[str, str], server: PostgresServer) -> None:
    """Q1: nothing is fetched; the same recorder records it when the server is back."""
    with Scene(environ | {"DATABASE_URL": server.url()}) as scene:
        scene.publish_event()
        scene.terminate("bad")
        scene.await_advisories(1)
        server.stop()
        try:
            with pytest.raises(RetryableError):
                scene.record()
            patient = scene.recorder.run(Budget(budget(1).deadline))
            assert patient["recorded"] == 0
            infos = scene.runner.run(scene.nats.jetstream.consumers_info(scene.topology.advisories.stream))
            assert [(info.num_ack_pending, info.num_redelivered) for info in infos] == [(0, 0), (0, 0)]
        finally:
            server.start()
        assert scene.record()["recorded"] == 1


def test_a_message_that_was_processed_after_all_closes_by_itself(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: JetStream counts deliveries, not effects; the last one may have had its effect."""
    early, _ = scene.publish_event()
    late, _ = scene.publish_event()
    third, _ = scene.publish_event()
    _bury(scene, monkeypatch, count=3)
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (early,))
    assert scene.record()["processed"] == 1
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (late,))
    assert scene.record()["processed"] == 1
    assert {letter["event_id"]: letter["status"] for letter in _letters(rows)} == {
        early: "PROCESSED",
        late: "PROCESSED",
        third: "OPEN",
    }


def test_a_terminated_message_stays_open_whatever_its_header_says(scene: Scene, rows: Rows) -> None:
    """Its payload was refused: the event of that id was another message."""
    event_id, _ = scene.publish_event()
    rows.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (event_id,))
    scene.terminate("bad")
    scene.await_advisories(1)
    assert scene.record() == {"recorded": 1, "duplicates": 0, "terminated": 0, "returned": 0, "processed": 0}
    assert _letters(rows)[0]["status"] == "OPEN"


def test_the_function_records_within_its_budget(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """S2: the event file's budget; the metric is there for the alarm."""
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: scene.recorder))
    scene.publish_event()
    scene.terminate("bad")
    scene.await_advisories(1)
    event = json.loads((ROOT / "infra" / "events" / "record_advisories.json").read_text())
    assert handler(event, None)["recorded"] == 1
    assert '"DeadLettersRecorded":[1.0]' in capsys.readouterr().out.replace(" ", "")
    assert len(_letters(rows)) == 1


def _letters(rows: Rows) -> list[dict[str, Any]]:
    return rows.execute("SELECT * FROM notification_nats_dlq ORDER BY recorded_at, stream_seq").fetchall()


def _advisory(scene: Scene, sequence: int, **fields: Any) -> bytes:
    return json.dumps(
        {
            "type": "io.nats.jetstream.advisory.v1.terminated",
            "id": uuid.uuid4().hex,
            "timestamp": datetime.now(UTC).isoformat(),
            "stream": scene.stream,
            "consumer": "bridge",
            "stream_seq": sequence,
            "deliveries": 1,
        }
        | fields
    ).encode()


def _purge(scene: Scene) -> None:
    scene.runner.run(scene.nats.jetstream.purge_stream(scene.stream))


def _bury(scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    """Let the bridge die of what is in the stream until JetStream gives up on it."""
    with monkeypatch.context() as broken:
        broken.setattr("grantwire.notifications.bridge.decode", _die)
        scene.die_of_it(count)


def _die(*_: object) -> None:
    raise MemoryError("the process dies")
