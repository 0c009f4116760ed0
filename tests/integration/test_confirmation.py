"""W1: what the stream loses is published again by itself, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.dead_letters.batches import NOT_OPEN
from grantwire.jetstream.connection import NatsConnection
from grantwire.outbox.confirmation import store
from grantwire.outbox.confirmation.turn import Confirmation
from tests.support.lossy_stream import LossyStream, ServerFiles
from tests.support.nats_users import configure, configured
from tests.support.operations import DEAD_LETTER, OpsClient
from tests.support.servers import newest_postgres
from tests.support.waiting import until
from tests.support.workers.relay_support import versions_by_aggregate, worker_environ

if TYPE_CHECKING:
    from infra.local.servers.nats import NatsServer
    from tests.integration.conftest import Rows

pytestmark = newest_postgres


@pytest.fixture
def flow(environ: dict[str, str], rows: Rows) -> LossyStream:
    """An outbox, a stream and an inbox, after the first check."""
    flow = LossyStream(environ, rows)
    flow.relay()
    return flow


@pytest.fixture
def own_flow(database_url: str, rows: Rows, nats_server: NatsServer) -> LossyStream:
    """The same, on a NATS server of its own."""
    flow = LossyStream(configured(worker_environ(database_url, nats_server.url)), rows)
    flow.relay()
    return flow


def _assert_arrives_once(flow: LossyStream, events: list[str]) -> None:
    """The events are in the inbox with one notification each, and the next checks find nothing."""
    flow.bridge()
    assert flow.arrived() == set(events)
    notified = flow.rows.execute("SELECT event_id FROM notifications").fetchall()
    assert sorted(str(row["event_id"]) for row in notified) == sorted(events)
    for _ in range(2):
        assert flow.relay()["put_back"] == 0
    assert flow.unconfirmed() == {}


def test_purged_events_are_published_again_in_order(flow: LossyStream) -> None:
    """W1: under a new Nats-Msg-Id, because JetStream still knows the first one, and before later changes."""
    events = flow.publish(users=2, versions=3)
    flow.purge()
    assert flow.bridge()["recorded"] == 0
    events += flow.change(users=2)
    result = flow.relay()
    assert (result["lost"], result["put_back"], result["published"]) == (6, 6, 8)
    messages = flow.published()
    again = {event: f"{event}:again:1" for event in events[:6]}
    assert {message.headers["event_id"]: message.headers["Nats-Msg-Id"] for message in messages} == again | {
        event: event for event in events[6:]
    }
    assert versions_by_aggregate(messages) == {"u0/item1": [1, 2, 3, 4], "u1/item1": [1, 2, 3, 4]}
    _assert_arrives_once(flow, events)


def test_purge_of_recorded_events_is_repaired_for_other_readers(flow: LossyStream) -> None:
    """W1: the range is recorded, its events are published again, and the inbox drops them."""
    events = flow.publish(users=3)
    flow.relay()
    flow.bridge()
    flow.purge()
    assert flow.relay()["put_back"] == 3
    flow.relay()
    (loss,) = flow.losses()
    assert (loss["cause"], loss["first_sequence"], loss["last_sequence"]) == ("PURGED", 1, 3)
    assert (loss["events_lost"], loss["events_republished"], loss["completed_at"] is None) == (3, 3, False)
    assert {message.headers["event_id"] for message in flow.published()} == set(events)
    assert flow.bridge()["duplicates"] == 3
    _assert_arrives_once(flow, events)
    assert len(flow.losses()) == 1


def test_events_of_a_recreated_stream_are_published_again(flow: LossyStream) -> None:
    """W1: recorded ones for other readers, the others for the inbox; nothing while the stream is missing (N3)."""
    events = flow.publish(users=2)
    flow.bridge()
    events += flow.publish(users=2)
    flow.delete_stream()
    with pytest.raises(Exception, match="is missing"):
        flow.relay()
    configure(flow.environ)
    events += flow.publish(users=2)
    (loss,) = flow.losses()
    assert (loss["cause"], loss["events_lost"], loss["events_republished"]) == ("RECREATED", 4, 4)
    assert {message.headers["event_id"] for message in flow.published()} == set(events)
    _assert_arrives_once(flow, events)


@pytest.mark.parametrize("later", [2, 20], ids=["shorter", "filled up"])
def test_cut_is_seen_while_the_bridge_is_stopped(own_flow: LossyStream, nats_server: NatsServer, later: int) -> None:
    """W1: waiting events hide nothing, even if the lost sequences are used again for later events."""
    files, flow = ServerFiles(nats_server), own_flow
    events = flow.publish(users=2)
    flow.bridge()
    events += flow.publish(users=2)
    files.copy()
    events += flow.publish(users=6, prefix="lost")
    flow.relay()
    files.cut()
    events += flow.change(users=later, prefix="later")
    flow.relay(minutes=0)
    flow.relay()
    (loss,) = flow.losses()
    assert (loss["cause"], loss["first_sequence"], loss["last_sequence"]) == ("CUT", 5, 10)
    assert loss["events_republished"] == 6
    _assert_arrives_once(flow, events)


def test_cut_between_two_checks_is_seen_by_reused_sequences(own_flow: LossyStream, nats_server: NatsServer) -> None:
    """W1: the events were published, lost, and their sequences used again since the last check."""
    files, flow = ServerFiles(nats_server), own_flow
    events = flow.publish(users=4)
    flow.relay()
    files.copy()
    events += flow.change(users=3, prefix="lost")
    flow.relay(minutes=0)
    files.cut()
    events += flow.change(users=5, prefix="later")
    flow.relay(minutes=0.01)
    for _ in range(2):
        flow.relay()
    (loss,) = flow.losses()
    assert (loss["cause"], loss["first_sequence"], loss["last_sequence"]) == ("CUT", 5, 7)
    _assert_arrives_once(flow, events)


def test_deleted_message_is_published_again_while_the_bridge_is_stopped(flow: LossyStream) -> None:
    """W1: only if it had not arrived: who deletes one message of a recorded event means it."""
    events = flow.publish(users=2)
    flow.bridge()
    events += flow.publish(users=3, prefix="waiting")
    flow.relay()
    sequences = flow.sequences()
    for event in (events[1], events[3]):
        flow.delete_message(sequences[event])
    assert [flow.relay()["put_back"] for _ in range(2)].count(1) == 1
    assert [loss["cause"] for loss in flow.losses()] == ["DELETED"]
    assert flow.sequences()[events[3]] == 6
    _assert_arrives_once(flow, events)


def test_late_events_are_not_published_again(flow: LossyStream) -> None:
    """W1: a bridge that is hours late, and a consumer that is deleted and created again, lose nothing."""
    events = flow.publish(users=5)
    flow.delete_consumer()
    assert [flow.relay(minutes=60)["put_back"] for _ in range(3)] == [0, 0, 0]
    assert set(flow.unconfirmed().values()) == {"WAITING"}
    configure(flow.environ)
    _assert_arrives_once(flow, events)


def test_events_that_left_by_age_are_published_again_if_they_did_not_arrive(flow: LossyStream) -> None:
    """W1: the others left as they should, and are no loss."""
    arrived = flow.publish(users=2)
    flow.bridge()
    late = flow.publish(users=2, prefix="late")
    flow.relay()
    flow.age_out()
    assert flow.relay(minutes=15 * 24 * 60)["put_back"] == 2
    assert {message.headers["event_id"] for message in flow.published()} == set(late)
    assert flow.losses() == []
    _assert_arrives_once(flow, arrived + late)


def test_event_that_is_acknowledged_but_did_not_arrive_is_published_again(flow: LossyStream) -> None:
    """W1: the acknowledgement floor proves nothing. Only after the recorder had the time to record a dead letter.

    G10: so an event comes back that the stolen credentials of a worker have acknowledged.
    """
    events = flow.publish(users=2)
    flow.acknowledge_all()
    results = [flow.relay()["put_back"] for _ in range(3)]
    assert results == [0, 2, 0]
    causes = flow.rows.execute("SELECT DISTINCT cause FROM outbox_republications").fetchall()
    assert causes == [{"cause": "NOT_DELIVERED"}]
    _assert_arrives_once(flow, events)


def test_dead_letters_are_not_published_again(flow: LossyStream) -> None:
    """W1: an open or discarded dead letter is the end of its event until a person acts, even if the stream is lost."""
    (event,) = flow.publish()
    flow.terminate("a bug")
    flow.relay()
    assert flow.relay()["put_back"] == 0  # the recorder did not run yet
    flow.record()
    flow.purge()
    assert [flow.relay()["put_back"] for _ in range(2)] == [0, 0]
    flow.rows.execute("UPDATE notification_nats_dlq SET status = 'DISCARDED', closed_at = now()")
    flow.recreate_stream()
    assert [flow.relay()["put_back"] for _ in range(2)] == [0, 0]
    assert flow.unconfirmed() == {}
    assert flow.arrived() == set()
    assert event not in {message.headers["event_id"] for message in flow.published()}


def test_forged_dead_letter_does_not_finish_an_event(flow: LossyStream) -> None:
    """W1, G1: a message that is not ours may name any event. Only a dead letter of what was published counts."""
    events = flow.publish(prefix="listed")
    events += flow.publish(prefix="behind the mark")
    flow.acknowledge_all()
    for event in events:
        flow.publish_forged(event)
    assert flow.bridge()["not_genuine"] == 2
    flow.record()
    letters = flow.rows.execute("SELECT event_id FROM notification_nats_dlq WHERE status = 'OPEN'").fetchall()
    assert sorted(str(row["event_id"]) for row in letters) == sorted(events)
    assert flow.status()["waiting"] == 2
    oldest = "SELECT event_id::text FROM outbox_events WHERE created_at = outbox_oldest_unconfirmed(1000)"
    assert flow.rows.execute(oldest).fetchall() == [{"event_id": events[0]}]
    with flow.rows.transaction(force_rollback=True):
        flow.rows.execute("DELETE FROM outbox_unconfirmed")
        assert flow.rows.execute(oldest).fetchall() == [{"event_id": events[1]}]
    assert [flow.relay()["put_back"] for _ in range(3)] == [0, 2, 0]
    _assert_arrives_once(flow, events)


def test_forged_dead_letter_does_not_confirm_a_redrive(flow: LossyStream) -> None:
    """W1, G1: not even if it names the dead letter that was redriven."""
    (event,) = flow.publish()
    flow.terminate("a bug")
    flow.record()
    flow.redrive()
    (letter,) = flow.rows.execute("SELECT dead_letter_id FROM notification_nats_dlq").fetchall()
    flow.purge()
    flow.publish_forged(event, redrive_of=str(letter["dead_letter_id"]))
    assert flow.bridge()["not_genuine"] == 1
    flow.record()
    assert flow.relay()["put_back"] == 1
    _assert_arrives_once(flow, [event])


def test_event_that_is_lost_again_waits_longer_each_time(flow: LossyStream) -> None:
    """W1: each time under the next number; W6: at first it does not wait, whatever the clock says."""
    (event,) = flow.publish()
    waits = []
    for number in range(1, 4):
        flow.purge()
        before = flow.now
        flow.relay()
        (row,) = flow.rows.execute("SELECT * FROM outbox_events").fetchall()
        is_due = row["next_retry_at"] == row["created_at"]
        waits.append(0 if is_due else round((row["next_retry_at"] - before).total_seconds()) - 60)
        assert row["republication"] == number
        flow.relay(minutes=0.4 if number == 1 else 2)
    assert waits == [0, 30, 60]
    assert [message.headers["Nats-Msg-Id"] for message in flow.published()] == [f"{event}:again:3"]
    _assert_arrives_once(flow, [event])


def _lose_old_event(flow: LossyStream) -> tuple[str, str]:
    """Lose two events, of which one is older than the inbox remembers, and return it and the other one."""
    old, new = flow.publish(users=2)
    query = "UPDATE outbox_events SET created_at = created_at - interval '31 days' WHERE event_id = %s"
    flow.rows.execute(query, (old,))
    flow.purge()
    result = flow.relay()
    assert (result["put_back"], result["too_old"]) == (1, 1)
    flow.bridge()
    assert flow.relay()["too_old"] == 0
    assert (flow.unconfirmed(), flow.arrived()) == ({old: "TOO_OLD"}, {new})
    return old, new


def test_event_older_than_the_inbox_remembers_is_a_dead_letter(flow: LossyStream) -> None:
    """W1, W3, T1: it could take effect twice, so that a person decides. Everywhere it is an open dead letter."""
    old, _ = _lose_old_event(flow)
    later = flow.change(users=1)
    flow.relay()
    flow.bridge()
    assert set(later) <= flow.arrived()  # nothing waits behind it
    error = "lost by the stream, and the inbox may have forgotten whether it arrived"
    with OpsClient(flow.environ["DATABASE_URL"]) as ops:
        (listed,) = ops.get("/v1/ops/dead-letters", kind="outbox").json["dead_letters"]
        assert (listed["dead_letter_id"], listed["error"], listed["user_id"]) == (old, error, "u0")
        found = ops.get(DEAD_LETTER, {"kind": "outbox", "dead_letter_id": old}).json
        assert (found["state"], found["since"]) == ("OPEN", listed["since"])
        assert found["message"]["decoded"]["user_id"] == "u0"
        (group,) = ops.get("/v1/ops/dead-letters/groups").json["groups"]
        assert (group["kind"], group["cause"], group["count"]) == ("outbox", error, 1)
        states = [change["state"] for change in ops.get("/v1/ops/trace", event_id=old).json["changes"]]
        assert states == ["DEAD_LETTER"]
        status = ops.get("/v1/ops/status").json
        assert status["settled"]["oldest"]["stream"] is None
        assert {"EVENTS_TOO_OLD", "DEAD_LETTERS"} <= {problem["code"] for problem in status["problems"]}


def test_lost_event_that_is_too_old_is_published_again_by_an_operator(flow: LossyStream) -> None:
    """W1, Q2: only with force, at once, and recorded."""
    old, new = _lose_old_event(flow)
    redrive = partial(flow.operate, "redrive", kind="outbox", ids=[old])
    (reason,) = redrive()["skipped"]
    assert reason.startswith("too old: ")
    assert redrive(force=True, dry_run=True)["ids"] == [old]
    assert flow.unconfirmed() == {old: "TOO_OLD"}
    assert redrive(force=True)["done"] == 1
    assert list(redrive(force=True)["skipped"]) == [NOT_OPEN]
    assert flow.relay(minutes=0)["published"] == 1
    assert f"{old}:again:1" in {message.headers["Nats-Msg-Id"] for message in flow.published()}
    flow.purge()
    flow.relay()
    assert flow.unconfirmed() == {old: "TOO_OLD"}
    assert redrive(force=True)["done"] == 1
    assert flow.relay(minutes=0)["published"] == 1  # without the wait of an event that is lost again
    actions = flow.rows.execute("SELECT dry_run, count FROM operator_actions WHERE count > 0 ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in actions] == [(False, 1), (False, 1), (True, 1)]
    _assert_arrives_once(flow, [old, new])


def test_lost_event_that_is_too_old_is_discarded_by_an_operator(flow: LossyStream) -> None:
    """W1, Q3: it is never published again, and keeps the reason."""
    old, new = _lose_old_event(flow)
    assert flow.operate("discard", kind="outbox", all=True)["done"] == 1
    assert flow.unconfirmed() == {}
    (closed,) = flow.rows.execute("SELECT dead_letter_id, state, error FROM closed_dead_letters").fetchall()
    assert (str(closed["dead_letter_id"]), closed["state"], closed["error"][:8]) == (old, "DISCARDED", "lost by ")
    flow.recreate_stream()
    assert flow.relay()["put_back"] == 1
    flow.relay()
    assert {message.headers["event_id"] for message in flow.published()} == {new}


def test_check_that_fails_does_not_stop_publishing(flow: LossyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: a bug, or a permission that is missing; the next check finds what this one did not."""
    events = flow.publish(users=2)
    flow.purge()
    events += flow.change()
    with monkeypatch.context() as broken:
        broken.setattr(NatsConnection, "get_message", None)
        broken.setattr("grantwire.outbox.confirmation.turn.read_stream_state", None)
        assert flow.relay()["published"] == 1
    assert flow.relay()["put_back"] == 2
    _assert_arrives_once(flow, events)


def test_check_runs_beside_a_backlog(flow: LossyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: the second check ends only when the relay has published more meanwhile."""
    events = flow.change(users=200)
    checks: list[int] = []

    async def run(_: Confirmation, _counts: object) -> bool:
        checks.append(len(flow.sequences()))
        if 0 < checks[-1] < len(events):
            await asyncio.to_thread(until, "more is published", lambda: len(flow.sequences()) > checks[1])
        return False

    monkeypatch.setattr(Confirmation, "is_due", property(lambda _: len(checks) < 2))
    monkeypatch.setattr(Confirmation, "run", run)
    assert flow.relay(ENTITLEMENT_OUTBOX_BATCH_SIZE="10")["published"] == len(events)
    assert checks[0] == 0
    assert 0 < checks[1] < len(events)


def test_redriven_copy_that_is_lost_is_published_again(flow: LossyStream) -> None:
    """W1: under the next redrive number, until the inbox has the event; not while it is only late."""
    (event,) = flow.publish()
    flow.terminate("a bug")
    flow.record()
    flow.redrive()
    flow.relay()
    assert flow.relay()["put_back"] == 0
    flow.purge()
    assert flow.relay()["put_back"] == 1
    (message,) = flow.published()
    assert message.headers["Nats-Msg-Id"] == f"{event}:redrive:2"
    assert [row["redrive_confirmed"] for row in flow.rows.execute("SELECT * FROM notification_nats_dlq")] == [False]
    _assert_arrives_once(flow, [event])
    assert [row["redrive_confirmed"] for row in flow.rows.execute("SELECT * FROM notification_nats_dlq")] == [True]


def test_redrive_number_of_a_crash_is_used_again(flow: LossyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1: it is committed before the message is published."""
    (event,) = flow.publish()
    flow.terminate("a bug")
    flow.record()
    flow.redrive()
    flow.purge()
    with monkeypatch.context() as broken:
        broken.setattr("grantwire.dead_letters.redriven.publish_redrives", None)
        assert flow.relay()["put_back"] == 0
    assert flow.relay()["put_back"] == 1
    assert [message.headers["Nats-Msg-Id"] for message in flow.published()] == [f"{event}:redrive:2"]
    _assert_arrives_once(flow, [event])


def test_status_counts_what_has_not_arrived(flow: LossyStream) -> None:
    """W1, W4: also events that the mark has not passed yet."""
    lost = flow.publish(users=2)
    flow.relay()
    waiting = flow.change(users=3, prefix="waiting")
    flow.relay(minutes=0.1)
    status = flow.status()
    assert (status["unconfirmed"], status["waiting"], status["republished"]) == (5, 5, 0)
    flow.bridge()
    assert flow.status()["unconfirmed"] == 0
    flow.recreate_stream()
    flow.relay()
    status = flow.status()
    assert (status["republished_last_hour"], status["unconfirmed"], status["too_old"]) == (5, 0, 0)
    assert [(loss["cause"], loss["events_republished"]) for loss in status["losses"]] == [("RECREATED", 5)]
    assert flow.arrived() == {*lost, *waiting}


def test_lowest_open_version_becomes_the_only_ready_one(flow: LossyStream) -> None:
    """W1, O8: also while a later version is ready, or claimed by another relay, with its attempts counted anew."""
    events = flow.publish(users=2, versions=2)
    later = flow.change(users=2)
    claimed = flow.rows.execute(
        "UPDATE outbox_events SET status = 'IN_FLIGHT', locked_by = 'w', locked_at = now(), lease_until = now(),"
        " attempt_count = 3 WHERE event_id = %s RETURNING event_id",
        (later[0],),
    ).fetchall()
    assert len(claimed) == 1
    sequences = flow.sequences()
    flow.rows.execute(
        "SELECT outbox_put_back(%s::uuid[], %s::bigint[], 'LOST', NULL, false, '-infinity', '30s', 1000, NULL)",
        (events[2:], [sequences[event] for event in events[2:]]),
    )
    rows = flow.rows.execute("SELECT * FROM outbox_events WHERE published_at IS NULL").fetchall()
    assert {str(row["event_id"]): (row["status"], row["ready"], row["attempt_count"]) for row in rows} == {
        events[2]: ("PENDING", True, 0),
        events[3]: ("PENDING", True, 0),
        later[0]: ("IN_FLIGHT", False, 3),
        later[1]: ("PENDING", False, 0),
    }


def test_held_entitlement_does_not_hold_back_the_others(flow: LossyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1, W7: its events are put back when it is free; the wait for it is bounded."""
    monkeypatch.setattr("grantwire.outbox.confirmation.putting_back._BATCH_SIZE", 1)
    monkeypatch.setattr(store, "put_back", partial(store.put_back, lock_wait=timedelta(milliseconds=50)))
    events = flow.publish(users=3)
    flow.purge()
    with psycopg.connect(flow.environ["DATABASE_URL"]) as other:
        other.execute("SELECT entitlements_lock(ARRAY['u1'], ARRAY['item1'], NULL, NULL)")
        assert [flow.relay()["put_back"] for _ in range(2)] == [2, 0]
        assert flow.losses()[0]["completed_at"] is None
    assert flow.relay()["put_back"] == 1
    (loss,) = flow.losses()
    assert (loss["events_lost"], loss["events_republished"], loss["completed_at"] is None) == (3, 3, False)
    _assert_arrives_once(flow, events)


def test_mark_waits_for_events_that_are_not_listed(flow: LossyStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1, W2: the list has room for a limited number; the others are behind the mark until there is room."""
    monkeypatch.setattr("grantwire.outbox.confirmation.examination._MAX_LISTED", 2)
    events = [event for _ in range(4) for event in flow.publish()]
    for _ in range(2):
        flow.relay()
        assert set(flow.unconfirmed()) == set(events[:2])
    flow.delete_message(flow.sequences()[events[3]])
    assert flow.relay()["put_back"] == 1
    _assert_arrives_once(flow, events)


def test_one_relay_at_a_time_checks(flow: LossyStream) -> None:
    """W1: the others do not, until the interval or the lease of the turn has passed."""
    seconds = timedelta(seconds=1)

    def begin(token: str, after: float) -> bool:
        with psycopg.connect(flow.environ["DATABASE_URL"], autocommit=True) as connection:
            now = flow.now + after * seconds
            turn = store.begin(
                connection, token, interval=10 * seconds, grace=15 * seconds, lease=30 * seconds, now=now
            )
            return turn is not None

    assert [begin("a", 9), begin("a", 10), begin("b", 25), begin("b", 39), begin("b", 41)] == [
        False,
        True,
        False,
        False,
        True,
    ]
