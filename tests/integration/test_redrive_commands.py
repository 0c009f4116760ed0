"""Q2, Q3: operators redrive and discard all kinds of dead letters in one way; who, why and when are kept."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from functions.redrive_dead_letters.handler import handle, handler
from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.errors import BadRequestError
from grantwire.runtime.lazy import LazyRuntime
from grantwire.runtime.redrive import RedriveRuntime
from infra.cli import redrive as command
from infra.local.errors import CommandError
from infra.local.progress import Progress
from tests.support.concurrency import at_once
from tests.support.dead_letters import Scene
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.dead_letters.dead_letter import Report
    from tests.integration.conftest import Rows
    from tests.support.client import Client

WHO = {"actor": "ann", "reason": "the decoder is repaired"}
LETTERS = ("outbox_events", "notifications", "notification_dlq", "notification_nats_dlq")


@pytest.fixture
def runtime(environ: dict[str, str]) -> Iterator[RedriveRuntime]:
    """What the function works with."""
    runtime = RedriveRuntime.build(environ)
    yield runtime
    runtime.close()


def test_a_failed_event_is_redriven_and_its_successors_flow(
    runtime: RedriveRuntime, client: Client, rows: Rows
) -> None:
    """Q2 (a): PENDING with fresh attempts, under the same id."""
    failed, successor = _failed_event(client, rows), _event(client.revoke("k2").status, rows)
    done = handle({"action": "redrive", "kind": "outbox", "ids": [str(failed)], **WHO}, runtime)
    assert (done["done"], done["ids"], done["skipped"]) == (1, [str(failed)], {})
    events = rows.execute(
        "SELECT event_id, status, attempt_count, ready FROM outbox_events ORDER BY aggregate_version"
    ).fetchall()
    assert [tuple(event.values()) for event in events] == [
        (failed, "PENDING", 0, True),
        (successor, "PENDING", 0, False),
    ]


def test_a_failed_event_is_discarded_and_its_successors_flow(
    runtime: RedriveRuntime, client: Client, rows: Rows
) -> None:
    """Q3: the other way out."""
    failed, successor = _failed_event(client, rows), _event(client.revoke("k2").status, rows)
    assert handle({"action": "discard", "kind": "outbox", "all": True, **WHO}, runtime)["ids"] == [str(failed)]
    events = rows.execute("SELECT event_id, status, ready FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [tuple(event.values()) for event in events] == [(failed, "DISCARDED", False), (successor, "PENDING", True)]


def test_a_notification_is_redriven_under_its_own_id(runtime: RedriveRuntime, rows: Rows) -> None:
    """Q2 (b), Q4: also if it was swept in the meantime."""
    kept, swept = _dead_notification(rows), _dead_notification(rows, kept=False)
    done = handle({"action": "redrive", "kind": "notification", "all": True, **WHO}, runtime)
    assert sorted(done["ids"]) == sorted([str(kept), str(swept)])
    found = rows.execute("SELECT notification_id, status, attempt_count FROM notifications").fetchall()
    assert {row["notification_id"]: (row["status"], row["attempt_count"]) for row in found} == {
        kept: ("PENDING", 0),
        swept: ("PENDING", 0),
    }
    again = handle({"action": "redrive", "kind": "notification", "ids": done["ids"], **WHO}, runtime)
    assert (again["done"], again["skipped"]) == (0, {"not open: closed already, or unknown": 2})


def test_a_notification_is_discarded(runtime: RedriveRuntime, rows: Rows) -> None:
    """Q3: its letter is closed, nothing is sent."""
    letter = _dead_notification(rows)
    assert handle({"action": "discard", "kind": "notification", "all": True, **WHO}, runtime)["ids"] == [str(letter)]
    assert rows.execute("SELECT status FROM notification_dlq").fetchall() == [{"status": "DISCARDED"}]
    assert rows.execute("SELECT status FROM notifications").fetchall() == [{"status": "FAILED"}]


def test_a_dry_run_changes_nothing(environ: dict[str, str], client: Client, rows: Rows) -> None:
    """Q2: it says what would be done, for every kind and both actions."""
    with Scene(environ) as scene:
        scene.publish_event()
        scene.terminate("bad")
        scene.await_advisories(1)
        scene.record()
        failed, dead = _failed_event(client, rows), _dead_notification(rows)
        before = _contents(rows)
        (letter,) = rows.execute("SELECT dead_letter_id FROM notification_nats_dlq").fetchall()
        expected = {"outbox": failed, "notification": dead, "nats": letter["dead_letter_id"]}
        for kind, one in expected.items():
            for action in ("redrive", "discard"):
                done = scene.execute(action=action, kind=kind, all=True, dry_run=True)
                assert (done["dry_run"], done["ids"]) == (True, [str(one)])
        assert _contents(rows) == before
        assert scene.stream_state() == 1
        kept = rows.execute("SELECT DISTINCT dry_run, count FROM operator_actions").fetchall()
        assert kept == [{"dry_run": True, "count": 1}]


def test_who_why_and_when_are_kept_with_what_changed(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q2: one row for each batch, in the transaction of the change."""
    failed = _failed_event(client, rows)
    chosen = {"event_type": "EntitlementGranted", "user_id": "u_123", "error": "broken", "newer_than": "1h"}
    handle({"action": "redrive", "kind": "outbox", "filter": chosen, "force": True, **WHO}, runtime)
    (kept,) = rows.execute("SELECT *, now() - occurred_at < interval '1 minute' AS recent FROM operator_actions")
    assert (kept["actor"], kept["reason"], kept["recent"]) == ("ann", "the decoder is repaired", True)
    assert (kept["action"], kept["kind"], kept["dry_run"]) == ("redrive", "outbox", False)
    assert (kept["dead_letter_ids"], kept["count"]) == ([failed], 1)
    assert kept["selection"] == {"filter": chosen, "force": True}


def test_a_change_that_cannot_be_kept_is_not_made(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q2: no anonymous redrive, whatever goes wrong."""
    _failed_event(client, rows)
    rows.execute("ALTER TABLE operator_actions ADD CONSTRAINT no_ann CHECK (actor <> 'ann')")
    with pytest.raises(Exception, match="no_ann"):
        handle({"action": "redrive", "kind": "outbox", "all": True, **WHO}, runtime)
    assert rows.execute("SELECT status FROM outbox_events").fetchall() == [{"status": "FAILED"}]


def test_an_old_event_needs_force(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q2: the inbox may have forgotten it; a discard needs none."""
    failed = _failed_event(client, rows)
    (event,) = rows.execute("SELECT created_at + interval '30 days 1 microsecond' AS late FROM outbox_events")
    execute = runtime.dead_letters.execute
    order = {"action": "redrive", "kind": "outbox", "all": True, **WHO}
    late = execute(DeadLetterCommand.parse(order), now=event["late"])
    assert (late.done, [len(ids) for ids in late.skipped.values()]) == ([], [1])
    on_time = execute(DeadLetterCommand.parse(order | {"dry_run": True}), now=event["late"] - timedelta(microseconds=1))
    discard = execute(DeadLetterCommand.parse(order | {"action": "discard", "dry_run": True}), now=event["late"])
    forced = execute(DeadLetterCommand.parse(order | {"force": True}), now=event["late"])
    assert [one.done for one in (on_time, discard, forced)] == [[failed]] * 3


def test_many_go_in_bounded_batches(environ: dict[str, str], rows: Rows) -> None:
    """Q2: each batch is committed on its own and reported; the limit is kept to."""
    _many_failed_events(rows, 25)
    runtime = RedriveRuntime.build(environ)
    seen: list[tuple[int, int]] = []

    def watch(report: Report) -> None:
        (committed,) = rows.execute("SELECT count(*) AS n FROM outbox_events WHERE status = 'PENDING'").fetchall()
        seen.append((len(report.done), committed["n"]))

    order = {"action": "redrive", "kind": "outbox", "all": True, **WHO}
    small = type(runtime.dead_letters)(
        runtime.dead_letters.database, runtime.dead_letters.republisher, timedelta(days=30), batch=10
    )
    try:
        first = small.execute(DeadLetterCommand.parse(order | {"limit": 15}), on_batch=watch)
        rest = small.execute(DeadLetterCommand.parse(order), on_batch=watch)
    finally:
        runtime.close()
    assert seen == [(10, 10), (15, 15), (10, 25)]
    assert (len(first.done), first.more, len(rest.done), rest.more) == (15, True, 10, False)
    batches = rows.execute("SELECT count FROM operator_actions ORDER BY occurred_at").fetchall()
    assert [batch["count"] for batch in batches] == [10, 5, 10]


def test_two_operators_at_once_change_each_letter_once(environ: dict[str, str], rows: Rows) -> None:
    """Q2: what one has done the other reports as changed, or does not see."""
    _many_failed_events(rows, 200)

    def redrive(_: int) -> int:
        runtime = RedriveRuntime.build(environ)
        try:
            return int(handle({"action": "redrive", "kind": "outbox", "all": True, **WHO}, runtime)["done"])
        finally:
            runtime.close()

    assert sum(at_once(2, redrive)) == 200
    (kept,) = rows.execute("SELECT sum(count) AS n FROM operator_actions").fetchall()
    assert kept["n"] == 200


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"action": "retry"}, "action must be one of list, redrive, discard, not 'retry'"),
        ({"kind": None}, "kind must be one of outbox, notification, nats"),
        ({"all": False}, 'exactly one of "ids", "filter" and "all": true'),
        ({"ids": [str(uuid.UUID(int=1))]}, 'exactly one of "ids", "filter" and "all": true'),
        ({"all": False, "ids": ["x"]}, "ids must be UUIDs"),
        ({"all": False, "ids": []}, "ids must be a list of 1 to 1000"),
        ({"all": False, "filter": {}}, "filter must be an object"),
        ({"all": False, "filter": {"user_id": "u"}}, "nats cannot be filtered by 'user_id'; use event_type"),
        ({"all": False, "filter": {"older_than": "1 hour"}}, "filter.older_than must be a duration such as"),
        ({"all": "yes"}, "all must be true or false"),
        ({"dry_run": 1}, "dry_run must be true or false"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"actor": ""}, "actor must not be empty"),
        ({"reason": "\x00"}, "reason must not"),
        ({"why": "x"}, "unknown field 'why'; known are action"),
    ],
)
def test_a_bad_order_is_refused_with_what_to_write(change: dict[str, Any], says: str) -> None:
    """Q2: before anything is looked at."""
    good = {"action": "redrive", "kind": "nats", "all": True, **WHO}
    assert DeadLetterCommand.parse(good).actor == "ann"
    with pytest.raises(BadRequestError) as error:
        DeadLetterCommand.parse(good | change)
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["actor", "reason"])
def test_who_and_why_are_required(name: str) -> None:
    """Q2: of every change, also of a dry run; not of a list."""
    order = {"action": "discard", "kind": "outbox", "all": True, "dry_run": True, **WHO}
    del order[name]
    with pytest.raises(BadRequestError, match=f"{name} is missing: say "):
        DeadLetterCommand.parse(order)
    assert DeadLetterCommand.parse({"action": "list", "kind": "outbox"}).limit == 100


def test_the_function_answers_its_event_file(
    runtime: RedriveRuntime, monkeypatch: pytest.MonkeyPatch, client: Client, rows: Rows
) -> None:
    """S2: a list shows what is open."""
    failed = _failed_event(client, rows)
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: runtime))
    event = json.loads((ROOT / "infra" / "events" / "redrive_dead_letters.json").read_text())
    assert handler(event, None) == {"action": "list", "kind": "nats", "letters": [], "more": False}
    (letter,) = handler({"action": "list", "kind": "outbox"}, None)["letters"]
    with pytest.raises(BadRequestError, match="action must be one of"):
        handler({}, None)
    assert (letter["id"], letter["user_id"], letter["error"]) == (str(failed), "u_123", "the stream is broken")


@pytest.mark.usefixtures("_command")
def test_the_command_does_the_same(
    environ: dict[str, str],
    client: Client,
    rows: Rows,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q2: with a dry run, a result that a person can read, and 1 if something chosen was left."""
    failed = _failed_event(client, rows)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    order = ["--kind", "outbox", "--error", "broken", "--reason", "NATS is back"]
    assert command.redrive(["--kind", "outbox", "--list"], Progress()) == 0
    assert f"{failed}" in capsys.readouterr().out
    assert command.redrive([*order, "--dry-run"], Progress()) == 0
    assert f"1 would be redriven:\n  {failed}\n" in capsys.readouterr().out
    assert command.redrive([*order, "--actor", "bob"], Progress()) == 0
    assert f"1 redriven:\n  {failed}\n" in capsys.readouterr().out
    again = ["--kind", "outbox", "--discard", "--ids", str(failed), "--reason", "again"]
    assert command.redrive(again, Progress()) == 1
    assert "1 skipped: not open" in capsys.readouterr().out
    (kept,) = rows.execute("SELECT actor, reason FROM operator_actions WHERE NOT dry_run AND count > 0").fetchall()
    assert kept == {"actor": "bob", "reason": "NATS is back"}


@pytest.mark.usefixtures("_command")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kind", "nats", "--all", "--reason", "r"], "belong together"),
        (["--kind", "outbox", "--all"], "reason is missing"),
        (["--kind", "outbox", "--reason", "r"], "exactly one of"),
        (["--kind", "outbox", "--list"], "temporarily unavailable"),
    ],
)
def test_the_command_explains_what_is_wrong(monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str) -> None:
    """No traceback: a message and what to do."""
    for name, value in {**PLAINTEXT, "DATABASE_URL": "postgresql://127.0.0.1:1/x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match=says):
        command.redrive(arguments, Progress())


def _failed_event(client: Client, rows: Rows) -> uuid.UUID:
    """A grant whose event the relay has given up on."""
    event_id = _event(client.grant("k1").status, rows)
    rows.execute(
        "UPDATE outbox_events SET status = 'FAILED', ready = false, attempt_count = 10,"
        " last_error = 'the stream is broken'"
    )
    return event_id


def _event(status: int, rows: Rows) -> uuid.UUID:
    assert status == 200
    (row,) = rows.execute("SELECT event_id FROM outbox_events ORDER BY aggregate_version DESC LIMIT 1").fetchall()
    event_id: uuid.UUID = row["event_id"]
    return event_id


def _many_failed_events(rows: Rows, count: int) -> None:
    rows.execute(
        """
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready)
        SELECT gen_random_uuid(), 'EntitlementGranted', 'u/' || n, 1, '{}', 'FAILED', false
          FROM generate_series(1, %s) n""",
        (count,),
    )


def _dead_notification(rows: Rows, *, kept: bool = True) -> uuid.UUID:
    """A notification that could not be delivered."""
    names = "notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, attempt_count"
    values = (uuid.uuid4(), uuid.uuid4(), "EntitlementGranted", "u_123", "item1", 1, "{}", 10)
    places = ", ".join(["%s"] * len(values))
    if kept:
        rows.execute(
            f"INSERT INTO notifications ({names}, status, next_retry_at) VALUES ({places}, 'FAILED', NULL)",  # noqa: S608
            values,
        )
    rows.execute(f"INSERT INTO notification_dlq ({names}) VALUES ({places})", values)  # noqa: S608
    return values[0]


def _contents(rows: Rows) -> dict[str, Any]:
    return {table: rows.execute(f"SELECT * FROM {table}").fetchall() for table in LETTERS}  # noqa: S608
