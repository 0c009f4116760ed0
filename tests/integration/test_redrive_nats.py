"""Q2 (c), Q3: messages that JetStream stopped delivering are redriven or discarded."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import AmbiguousError, RejectedError, RetryableError
from grantwire.jetstream.publisher import Publisher
from tests.support.commands import Operations
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import Pipeline, event_bytes, event_headers
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows

pytestmark = newest_postgres

DECODER = "grantwire.notifications.bridge.decode"


@pytest.fixture
def pipeline(environ: dict[str, str]) -> Iterator[Pipeline]:
    """A stream and its workers, with a short ack wait and two deliveries."""
    quick = {"NOTIFICATION_NATS_ACK_WAIT": "300ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}
    with Pipeline(environ | quick) as pipeline:
        yield pipeline


def test_terminated_message_is_redriven_and_processed(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N5, Q1, Q2: terminated by a broken decoder, recorded, redriven to a repaired decoder, processed once."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    pipeline.publish(payload, event_headers(event_id, trace_id="1-abc"))
    with monkeypatch.context() as broken:
        broken.setattr(DECODER, _reject)
        assert pipeline.run_bridge()["terminated"] == 1
    pipeline.wait_for_advisories(1)
    pipeline.run_recorder()
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["kind"], dead_letter["reason"], dead_letter["payload"]) == ("MSG_TERMINATED", "a bug", payload)

    done = pipeline.execute(action="redrive", kind="nats", all=True)
    assert (done["done"], done["skipped"]) == (1, {})
    message = pipeline.get_message(2)
    assert message.data == payload
    assert message.headers == dead_letter["headers"] | {
        "Nats-Msg-Id": f"{event_id}:redrive:1",
        "redrive_of": str(dead_letter["dead_letter_id"]),
    }
    assert pipeline.run_bridge()["recorded"] == 1
    assert rows.execute("SELECT event_id FROM notifications").fetchall() == [{"event_id": event_id}]
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["status"], dead_letter["redrive_count"]) == ("REDRIVEN", 1)
    assert dead_letter["closed_at"] is not None


def test_message_past_max_deliver_is_redriven_and_processed(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N6, Q1, Q2: the bridge crashed at each delivery; after the repair the message has one effect."""
    event_id, _ = pipeline.publish_event()
    with monkeypatch.context() as broken:
        broken.setattr(DECODER, _crash)
        pipeline.run_bridge_until_max_deliver(1)
    pipeline.run_recorder()
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert pipeline.run_bridge()["recorded"] == 1
    assert rows.execute("SELECT event_id FROM processed_events").fetchall() == [{"event_id": event_id}]


def test_message_without_event_id_is_redriven_with_its_stream_sequence(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: the id is `dlq:<stream>:<seq>:redrive:<n>`; the bytes are unchanged."""
    payload = event_bytes(uuid.uuid4())
    dead_letter = _record_dead_letter(pipeline, rows, payload, {"Nats-Expected-Stream": pipeline.stream})
    pipeline.execute(action="redrive", kind="nats", ids=[str(dead_letter["dead_letter_id"])])
    message = pipeline.get_message(2)
    assert message.data == payload
    assert message.headers == {
        "Nats-Msg-Id": f"dlq:{pipeline.stream}:1:redrive:1",
        "redrive_of": str(dead_letter["dead_letter_id"]),
    }


@pytest.mark.parametrize("force", [False, True])
def test_message_that_can_never_be_recorded_is_not_redriven(pipeline: Pipeline, rows: Rows, *, force: bool) -> None:
    """W8: not even with force. Nothing is published, so that no redrive makes new dead letters."""
    _record_dead_letter(pipeline, rows, b"\xffnonsense", {})
    _record_dead_letter(pipeline, rows, b"\x00" * 70_000, {})
    event_id = uuid.uuid4()
    pipeline.publish(event_bytes(event_id), event_headers(event_id), genuine=False)
    pipeline.run_bridge()
    pipeline.wait_for_advisories(3)
    pipeline.run_recorder()
    for dry_run in (True, False):
        report = pipeline.execute(action="redrive", kind="nats", all=True, force=force, dry_run=dry_run)
        assert (report["selected"], report["done"]) == (3, 0)
        assert {reason.partition(":")[0]: count for reason, count in report["skipped"].items()} == {
            "not an event": 2,
            "not genuine": 1,
        }
    assert pipeline.last_sequence() == 3
    assert [row["status"] for row in _dead_letters(rows)] == ["OPEN"] * 3


def test_dead_letter_of_redriven_message_links_to_its_origin(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: its own redrive has the next number, which JetStream does not know yet."""
    event_id = uuid.uuid4()
    first = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    for number in (1, 2):
        assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1
        assert pipeline.get_message(number + 1).headers["Nats-Msg-Id"] == f"{event_id}:redrive:{number}"
        pipeline.terminate_next("still bad")
        pipeline.wait_for_advisories(number + 1)
        pipeline.run_recorder()
    dead_letters = _dead_letters(rows)
    assert [dead_letter["origin"] for dead_letter in dead_letters] == [
        None,
        first["dead_letter_id"],
        dead_letters[1]["dead_letter_id"],
    ]
    assert [dead_letter["status"] for dead_letter in dead_letters] == ["REDRIVEN", "REDRIVEN", "OPEN"]
    assert [dead_letter["event_time"] for dead_letter in dead_letters] == [first["event_time"]] * 3


def test_origin_is_kept_when_bridge_republishes_message(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: the bridge changes the Nats-Msg-Id; the next redrive must not reuse a number."""
    event_id = uuid.uuid4()
    first = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    pipeline.execute(action="redrive", kind="nats", all=True)
    headers = pipeline.get_message(2).headers | {"Nats-Msg-Id": f"{pipeline.stream}:2:again"}
    pipeline.publish(event_bytes(event_id), headers)
    assert [pipeline.terminate_next("bad"), pipeline.terminate_next("bad")] == [2, 3]
    pipeline.wait_for_advisories(3)
    pipeline.run_recorder()
    assert [dead_letter["origin"] for dead_letter in _dead_letters(rows)] == [None] + [first["dead_letter_id"]] * 2
    before = pipeline.last_sequence()
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 2
    assert pipeline.last_sequence() == before + 2


def test_crash_between_commit_and_publish_reuses_same_id(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2: the number is committed first, and the next redrive uses it again."""
    event_id = uuid.uuid4()
    _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as crash:
        crash.setattr(Publisher, "publish", _crash)
        with pytest.raises(MemoryError):
            pipeline.execute(action="redrive", kind="nats", all=True)
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["status"], dead_letter["redrive_count"]) == ("OPEN", 1)
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert pipeline.get_message(2).headers["Nats-Msg-Id"] == f"{event_id}:redrive:1"
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["status"], dead_letter["redrive_count"]) == ("REDRIVEN", 1)


def test_crash_between_publish_and_close_is_deduplicated(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2: JetStream has the message already; the repeat has the same id and stores nothing."""
    event_id = uuid.uuid4()
    _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as crash:
        crash.setattr("grantwire.dead_letters.store.finish_redrive", _crash)
        with pytest.raises(MemoryError):
            pipeline.execute(action="redrive", kind="nats", all=True)
    assert (pipeline.last_sequence(), _dead_letters(rows)[0]["status"]) == (2, "OPEN")
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert (pipeline.last_sequence(), _dead_letters(rows)[0]["status"]) == (2, "REDRIVEN")


@pytest.mark.parametrize(
    ("error", "prefix"),
    [
        (AmbiguousError("no acknowledgement in time"), "uncertain"),
        (RetryableError("no stream listens"), "not stored"),
        (RejectedError("too large"), "refused"),
    ],
)
def test_unacknowledged_redrive_stays_open(
    pipeline: Pipeline, rows: Rows, monkeypatch: pytest.MonkeyPatch, error: Exception, prefix: str
) -> None:
    """Q2: the report contains the reason; a later redrive closes the dead letter."""

    async def fail(*_: object) -> None:
        raise error

    event_id = uuid.uuid4()
    _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as broken:
        broken.setattr(Publisher, "publish", fail)
        done = pipeline.execute(action="redrive", kind="nats", all=True)
    ((reason, count),) = done["skipped"].items()
    assert (done["done"], reason.startswith(prefix), count) == (0, True, 1)
    assert _dead_letters(rows)[0]["status"] == "OPEN"
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1


def test_nothing_is_changed_while_nats_is_unreachable(
    environ: dict[str, str], rows: Rows, nats_server: NatsServer
) -> None:
    """Q2: no redrive number is assigned."""
    with Pipeline(environ | {"NATS_URL": nats_server.url}) as pipeline:
        event_id = uuid.uuid4()
        before = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
        nats_server.kill()
        with pytest.raises(RetryableError, match="NATS is unreachable"):
            pipeline.execute(action="redrive", kind="nats", all=True)
        assert _dead_letters(rows) == [before]
        assert rows.execute("SELECT FROM operator_actions").fetchall() == []
        nats_server.start()
        assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 1


def test_second_redrive_changes_nothing(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: the dead letter is closed already, and the report says so."""
    event_id = uuid.uuid4()
    dead_letter = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    ids = [str(dead_letter["dead_letter_id"])]
    assert pipeline.execute(action="redrive", kind="nats", ids=ids)["done"] == 1
    (before,) = _dead_letters(rows)
    again = pipeline.execute(action="redrive", kind="nats", ids=[*ids, str(uuid.UUID(int=1))])
    assert (again["done"], again["skipped"]) == (0, {"not open: already closed, or unknown id": 2})
    assert (_dead_letters(rows), pipeline.last_sequence()) == ([before], 2)
    assert pipeline.run_bridge()["recorded"] == 1


def test_two_dead_letters_of_one_event_become_two_messages(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: each has its own number in the same command, or JetStream would drop the second as a duplicate."""
    event_id = uuid.uuid4()
    for copy in ("first", "second"):
        headers = event_headers(event_id) | {"Nats-Msg-Id": copy}
        _record_dead_letter(pipeline, rows, event_bytes(event_id), headers)
    assert pipeline.execute(action="redrive", kind="nats", all=True)["done"] == 2
    assert sorted(dead_letter["redrive_count"] for dead_letter in _dead_letters(rows)) == [1, 2]
    assert pipeline.last_sequence() == 4
    assert pipeline.run_bridge() == {"recorded": 1, "duplicates": 1, "terminated": 0, "not_genuine": 0, "returned": 0}


def test_concurrent_redrives_store_one_message(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: they use the same number, and JetStream stores it once."""
    event_id = uuid.uuid4()
    _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))

    def redrive(_: int) -> None:
        with Operations(pipeline.environ) as operations:
            operations.execute("dead_letters.redrive", kind="nats", all=True)

    run_concurrently(4, redrive)
    (dead_letter,) = _dead_letters(rows)
    assert (dead_letter["status"], dead_letter["redrive_count"], pipeline.last_sequence()) == ("REDRIVEN", 1, 2)


def test_event_older_than_inbox_retention_requires_force(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: exactly thirty days needs no force; a microsecond more does."""
    event_id = uuid.uuid4()
    dead_letter = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    limit = dead_letter["event_time"] + timedelta(days=30)
    request: dict[str, Any] = {"action": "redrive", "kind": "nats", "all": True}
    late = pipeline.execute(**request, now=limit + timedelta(microseconds=1))
    ((reason, count),) = late["skipped"].items()
    assert (late["done"], count, reason.endswith("use force to redrive it")) == (0, 1, True)
    assert pipeline.execute(**request, dry_run=True, now=limit)["done"] == 1
    assert pipeline.execute(**request, force=True, now=limit + timedelta(microseconds=1))["done"] == 1


def test_dead_letter_without_copy_can_only_be_discarded(pipeline: Pipeline, rows: Rows) -> None:
    """Q2, Q3: there is no message to publish."""
    pipeline.publish_event()
    pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(1)
    pipeline.runner.run(pipeline.nats.jetstream.purge_stream(pipeline.stream))
    pipeline.run_recorder()
    done = pipeline.execute(action="redrive", kind="nats", all=True, force=True)
    assert [reason.partition(":")[0] for reason in done["skipped"]] == ["no copy"]
    assert pipeline.execute(action="discard", kind="nats", all=True)["done"] == 1
    assert _dead_letters(rows)[0]["status"] == "DISCARDED"


def test_discarded_dead_letter_cannot_be_redriven(pipeline: Pipeline, rows: Rows) -> None:
    """Q3: nothing is published, now or later."""
    event_id = uuid.uuid4()
    dead_letter = _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id))
    ids = [str(dead_letter["dead_letter_id"])]
    assert pipeline.execute(action="discard", kind="nats", ids=ids)["done"] == 1
    assert pipeline.execute(action="redrive", kind="nats", ids=ids)["done"] == 0
    assert (_dead_letters(rows)[0]["status"], pipeline.last_sequence()) == ("DISCARDED", 1)


def test_dead_letters_are_selected_by_filter(pipeline: Pipeline, rows: Rows) -> None:
    """Q2: all conditions must hold."""
    for number, reason in enumerate(("cannot parse A", "cannot parse B", "constraint")):
        event_id = uuid.uuid4()
        kind = "EntitlementGranted" if number else "EntitlementRevoked"
        _record_dead_letter(pipeline, rows, event_bytes(event_id), event_headers(event_id, event_type=kind), reason)

    def count_selected(**conditions: str) -> int:
        return int(pipeline.execute(action="redrive", kind="nats", filter=conditions, dry_run=True)["done"])

    assert count_selected(error="cannot parse") == 2
    assert count_selected(error="cannot parse", event_type="EntitlementGranted") == 1
    assert count_selected(error="MSG_TERMINATED") == 3
    assert count_selected(older_than="1h") == 0
    assert count_selected(newer_than="1h") == 3
    constraint = pipeline.execute(action="discard", kind="nats", filter={"error": "constraint"}, dry_run=True)
    assert constraint["ids"] == [str(_dead_letters(rows)[-1]["dead_letter_id"])]


def _dead_letters(rows: Rows) -> list[dict[str, Any]]:
    return rows.execute("SELECT * FROM notification_nats_dlq ORDER BY stream_seq").fetchall()


def _record_dead_letter(
    pipeline: Pipeline, rows: Rows, payload: bytes, headers: dict[str, str], reason: str = "bad"
) -> dict[str, Any]:
    """Publish a message, terminate it as its consumer would, and record its dead letter."""
    sequence = pipeline.publish(payload, headers)
    assert pipeline.terminate_next(reason) == sequence
    pipeline.wait_for_advisories(sequence)
    pipeline.run_recorder()
    return _dead_letters(rows)[-1]


def _reject(*_: object) -> None:
    raise RejectedError("a bug")


def _crash(*_: object) -> None:
    raise MemoryError("the process dies")
