"""Q2 (c), Q3: messages that JetStream gave up on are sent again, or given up."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.errors import AmbiguousError, RejectedError, RetryableError
from grantwire.jetstream.publisher import Publisher
from grantwire.runtime.redrive import RedriveRuntime
from tests.support.concurrency import at_once
from tests.support.dead_letters import Scene, event_bytes, event_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows

DECODER = "grantwire.notifications.bridge.decode"


@pytest.fixture
def scene(environ: dict[str, str]) -> Iterator[Scene]:
    """A stream and its workers; deliveries end quickly."""
    quick = {"NOTIFICATION_NATS_ACK_WAIT": "300ms", "NOTIFICATION_NATS_MAX_DELIVER": "2"}
    with Scene(environ | quick) as scene:
        yield scene


def test_a_poison_payload_is_redriven_and_processed(scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """N5, Q1, Q2: refused by the decoder, recorded, sent again to a repaired decoder, processed once."""
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    scene.publish(payload, event_headers(event_id, trace_id="1-abc"))
    with monkeypatch.context() as broken:
        broken.setattr(DECODER, _refuse)
        assert scene.consume()["terminated"] == 1
    scene.await_advisories(1)
    scene.record()
    (letter,) = _letters(rows)
    assert (letter["kind"], letter["reason"], letter["payload"]) == ("MSG_TERMINATED", "a bug", payload)

    done = scene.execute(action="redrive", kind="nats", all=True)
    assert (done["done"], done["ids"], done["skipped"]) == (1, [str(letter["dead_letter_id"])], {})
    message = scene.message(2)
    assert message.data == payload
    assert message.headers == letter["headers"] | {
        "Nats-Msg-Id": f"{event_id}:redrive:1",
        "redrive_of": str(letter["dead_letter_id"]),
    }
    assert scene.consume()["recorded"] == 1
    assert rows.execute("SELECT event_id FROM notifications").fetchall() == [{"event_id": event_id}]
    (letter,) = _letters(rows)
    assert (letter["status"], letter["redrive_count"]) == ("REDRIVEN", 1)
    assert letter["closed_at"] is not None


def test_a_message_past_its_delivery_limit_is_redriven_and_processed(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N6, Q1, Q2: the bridge died of it each time; repaired, it has its one effect."""
    event_id, _ = scene.publish_event()
    with monkeypatch.context() as broken:
        broken.setattr(DECODER, _die)
        scene.die_of_it(1)
    scene.record()
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert scene.consume()["recorded"] == 1
    assert rows.execute("SELECT event_id FROM processed_events").fetchall() == [{"event_id": event_id}]


def test_a_message_without_an_event_id_is_redriven_under_its_place_in_the_stream(scene: Scene, rows: Rows) -> None:
    """Q2: `dlq:<stream>:<seq>:redrive:<n>`; the bytes are as they were."""
    letter = _dead_letter(scene, rows, b"\xffnonsense", {"Nats-Expected-Stream": scene.stream})
    scene.execute(action="redrive", kind="nats", ids=[str(letter["dead_letter_id"])])
    message = scene.message(2)
    assert message.data == b"\xffnonsense"
    assert message.headers == {
        "Nats-Msg-Id": f"dlq:{scene.stream}:1:redrive:1",
        "redrive_of": str(letter["dead_letter_id"]),
    }


def test_a_dead_letter_of_a_redriven_message_links_to_its_origin(scene: Scene, rows: Rows) -> None:
    """Q2: and its own redrive has the next number, which JetStream does not know yet."""
    event_id = uuid.uuid4()
    first = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    for number in (1, 2):
        assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1
        assert scene.message(number + 1).headers["Nats-Msg-Id"] == f"{event_id}:redrive:{number}"
        scene.terminate("still bad")
        scene.await_advisories(number + 1)
        scene.record()
    letters = _letters(rows)
    assert [letter["origin"] for letter in letters] == [None, first["dead_letter_id"], letters[1]["dead_letter_id"]]
    assert [letter["status"] for letter in letters] == ["REDRIVEN", "REDRIVEN", "OPEN"]
    assert [letter["event_time"] for letter in letters] == [first["event_time"]] * 3


def test_a_redriven_message_that_the_bridge_puts_behind_the_others_still_links(scene: Scene, rows: Rows) -> None:
    """Q2: the bridge gives it another Nats-Msg-Id then; its redrive must not take a number that was used."""
    event_id = uuid.uuid4()
    first = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    scene.execute(action="redrive", kind="nats", all=True)
    headers = scene.message(2).headers | {"Nats-Msg-Id": f"{scene.stream}:2:again"}
    scene.publish(event_bytes(event_id), headers)
    assert [scene.terminate("bad"), scene.terminate("bad")] == [2, 3]
    scene.await_advisories(3)
    scene.record()
    assert [letter["origin"] for letter in _letters(rows)] == [None] + [first["dead_letter_id"]] * 2
    before = scene.stream_state()
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 2
    assert scene.stream_state() == before + 2


def test_a_crash_between_commit_and_publish_repeats_the_same_id(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2: the number is committed first; whoever comes next uses it again."""
    event_id = uuid.uuid4()
    _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as crash:
        crash.setattr(Publisher, "publish", _die)
        with pytest.raises(MemoryError):
            scene.execute(action="redrive", kind="nats", all=True)
    (letter,) = _letters(rows)
    assert (letter["status"], letter["redrive_count"]) == ("OPEN", 1)
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert scene.message(2).headers["Nats-Msg-Id"] == f"{event_id}:redrive:1"
    (letter,) = _letters(rows)
    assert (letter["status"], letter["redrive_count"]) == ("REDRIVEN", 1)


def test_a_crash_between_publish_and_close_is_deduplicated(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2: JetStream has the message and nobody knows; the repeat carries the same id and stores nothing."""
    event_id = uuid.uuid4()
    _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as crash:
        crash.setattr("grantwire.dead_letters.store.finish_redrive", _die)
        with pytest.raises(MemoryError):
            scene.execute(action="redrive", kind="nats", all=True)
    assert (scene.stream_state(), _letters(rows)[0]["status"]) == (2, "OPEN")
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1
    assert (scene.stream_state(), _letters(rows)[0]["status"]) == (2, "REDRIVEN")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (AmbiguousError("no acknowledgement in time"), "uncertain"),
        (RetryableError("no stream listens"), "not stored"),
        (RejectedError("too large"), "refused"),
    ],
)
def test_what_is_not_acknowledged_stays_open(
    scene: Scene, rows: Rows, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    """Q2: and the report says so; a later redrive closes it."""

    async def fail(*_: object) -> None:
        raise error

    event_id = uuid.uuid4()
    letter = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    with monkeypatch.context() as broken:
        broken.setattr(Publisher, "publish", fail)
        done = scene.execute(action="redrive", kind="nats", all=True)
    ((reason, ids),) = done["skipped_ids"].items()
    assert (done["done"], reason.startswith(why), ids) == (0, True, [str(letter["dead_letter_id"])])
    assert _letters(rows)[0]["status"] == "OPEN"
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1


def test_without_nats_nothing_is_changed(environ: dict[str, str], rows: Rows, nats_server: NatsServer) -> None:
    """Q2: no number is raised for a publish that cannot be tried."""
    with Scene(environ | {"NATS_URL": nats_server.url}) as scene:
        event_id = uuid.uuid4()
        before = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
        nats_server.kill()
        with pytest.raises(RetryableError, match="NATS is unreachable"):
            scene.execute(action="redrive", kind="nats", all=True)
        assert _letters(rows) == [before]
        assert rows.execute("SELECT FROM operator_actions").fetchall() == []
        nats_server.start()
        assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 1


def test_redriving_twice_does_no_harm(scene: Scene, rows: Rows) -> None:
    """Q2: the second time it is closed already, and the report says so."""
    event_id = uuid.uuid4()
    letter = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    ids = [str(letter["dead_letter_id"])]
    assert scene.execute(action="redrive", kind="nats", ids=ids)["done"] == 1
    (before,) = _letters(rows)
    again = scene.execute(action="redrive", kind="nats", ids=[*ids, str(uuid.UUID(int=1))])
    assert (again["done"], again["skipped"]) == (0, {"not open: closed already, or unknown": 2})
    assert (_letters(rows), scene.stream_state()) == ([before], 2)
    assert scene.consume()["recorded"] == 1


def test_two_letters_of_one_event_are_two_messages(scene: Scene, rows: Rows) -> None:
    """Q2: in one order too, each has a number of its own, or JetStream would drop the second as a duplicate."""
    event_id = uuid.uuid4()
    for copy in ("first", "second"):
        headers = event_headers(event_id) | {"Nats-Msg-Id": copy}
        _dead_letter(scene, rows, event_bytes(event_id), headers)
    assert scene.execute(action="redrive", kind="nats", all=True)["done"] == 2
    assert sorted(letter["redrive_count"] for letter in _letters(rows)) == [1, 2]
    assert scene.stream_state() == 4
    assert scene.consume() == {"recorded": 1, "duplicates": 1, "terminated": 0, "returned": 0}


def test_two_operators_at_once_send_one_message(scene: Scene, rows: Rows) -> None:
    """Q2: they agree on the number, and JetStream stores it once."""
    event_id = uuid.uuid4()
    _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    order = DeadLetterCommand.parse(
        {"action": "redrive", "kind": "nats", "all": True, "actor": "ann", "reason": "repaired"}
    )

    def redrive(_: int) -> None:
        runtime = RedriveRuntime.build(scene.environ)
        try:
            runtime.dead_letters.execute(order)
        finally:
            runtime.close()

    at_once(4, redrive)
    (letter,) = _letters(rows)
    assert (letter["status"], letter["redrive_count"], scene.stream_state()) == ("REDRIVEN", 1, 2)


def test_an_event_older_than_the_inbox_needs_force(scene: Scene, rows: Rows) -> None:
    """Q2: exactly thirty days is still remembered; a microsecond more needs force."""
    event_id = uuid.uuid4()
    letter = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    edge = letter["event_time"] + timedelta(days=30)
    order: dict[str, Any] = {"action": "redrive", "kind": "nats", "all": True}
    late = scene.execute(**order, now=edge + timedelta(microseconds=1))
    ((why, count),) = late["skipped"].items()
    assert (late["done"], count, why.endswith("use force")) == (0, 1, True)
    assert scene.execute(**order, dry_run=True, now=edge)["done"] == 1
    assert scene.execute(**order, force=True, now=edge + timedelta(microseconds=1))["done"] == 1


def test_a_letter_without_a_copy_can_only_be_discarded(scene: Scene, rows: Rows) -> None:
    """Q2, Q3: there is nothing to send."""
    scene.publish_event()
    scene.terminate("bad")
    scene.await_advisories(1)
    scene.runner.run(scene.nats.jetstream.purge_stream(scene.stream))
    scene.record()
    done = scene.execute(action="redrive", kind="nats", all=True, force=True)
    assert [why.partition(":")[0] for why in done["skipped"]] == ["no copy"]
    assert scene.execute(action="discard", kind="nats", all=True)["done"] == 1
    assert _letters(rows)[0]["status"] == "DISCARDED"


def test_a_discarded_letter_is_closed_for_good(scene: Scene, rows: Rows) -> None:
    """Q3: nothing is sent, now or later."""
    event_id = uuid.uuid4()
    letter = _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id))
    ids = [str(letter["dead_letter_id"])]
    assert scene.execute(action="discard", kind="nats", ids=ids)["ids"] == ids
    assert scene.execute(action="redrive", kind="nats", ids=ids)["done"] == 0
    assert (_letters(rows)[0]["status"], scene.stream_state()) == ("DISCARDED", 1)


def test_letters_are_chosen_by_filter(scene: Scene, rows: Rows) -> None:
    """Q2: every part that is given must hold."""
    for number, reason in enumerate(("cannot parse A", "cannot parse B", "constraint")):
        event_id = uuid.uuid4()
        kind = "EntitlementGranted" if number else "EntitlementRevoked"
        _dead_letter(scene, rows, event_bytes(event_id), event_headers(event_id, event_type=kind), reason)

    def chosen(**parts: str) -> int:
        return int(scene.execute(action="redrive", kind="nats", filter=parts, dry_run=True)["done"])

    assert chosen(error="cannot parse") == 2
    assert chosen(error="cannot parse", event_type="EntitlementGranted") == 1
    assert chosen(error="MSG_TERMINATED") == 3
    assert chosen(older_than="1h") == 0
    assert chosen(newer_than="1h") == 3
    shown = scene.execute(action="list", kind="nats", filter={"error": "constraint"})["letters"]
    assert [letter["error"] for letter in shown] == ["MSG_TERMINATED after 1 deliveries: constraint"]


def _letters(rows: Rows) -> list[dict[str, Any]]:
    return rows.execute("SELECT * FROM notification_nats_dlq ORDER BY stream_seq").fetchall()


def _dead_letter(
    scene: Scene, rows: Rows, payload: bytes, headers: dict[str, str], reason: str = "bad"
) -> dict[str, Any]:
    """Publish a message, refuse it as its consumer would, and record it."""
    sequence = scene.publish(payload, headers)
    assert scene.terminate(reason) == sequence
    scene.await_advisories(sequence)
    scene.record()
    return _letters(rows)[-1]


def _refuse(*_: object) -> None:
    raise RejectedError("a bug")


def _die(*_: object) -> None:
    raise MemoryError("the process dies")
