"""Q2, Q3: operators redrive and discard all kinds of dead letters, and every action is recorded."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from functions.redrive_dead_letters.handler import handle, handler
from grantwire.dead_letters.commands import DeadLetterCommand
from grantwire.errors import BadRequestError
from grantwire.wiring.lazy import LazyRuntime
from grantwire.wiring.tasks.redrive_dead_letters import RedriveRuntime
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.operators import redrive as cli
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import Pipeline
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.dead_letters.dead_letter import Report
    from tests.integration.conftest import Rows
    from tests.support.client import Client

OPERATOR = {"actor": "ann", "reason": "the decoder is repaired"}
DEAD_LETTER_TABLES = ("outbox_events", "notifications", "notification_dlq", "notification_nats_dlq")


@pytest.fixture
def runtime(environ: dict[str, str]) -> Iterator[RedriveRuntime]:
    """The runtime of the function."""
    runtime = RedriveRuntime.build(environ)
    yield runtime
    runtime.close()


def test_redrive_of_outbox_event_unblocks_its_aggregate(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q2 (a): PENDING with the same id, and attempts counted from zero."""
    failed, successor = _failed_event(client, rows), _latest_event_id(client.revoke("k2").status, rows)
    done = handle({"action": "redrive", "kind": "outbox", "ids": [str(failed)], **OPERATOR}, runtime, "a test")
    assert (done["done"], done["ids"], done["skipped"]) == (1, [str(failed)], {})
    events = rows.execute(
        "SELECT event_id, status, attempt_count, ready FROM outbox_events ORDER BY aggregate_version"
    ).fetchall()
    assert [tuple(event.values()) for event in events] == [
        (failed, "PENDING", 0, True),
        (successor, "PENDING", 0, False),
    ]


def test_discard_of_outbox_event_unblocks_its_aggregate(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q3: the next event of the aggregate becomes its head."""
    failed, successor = _failed_event(client, rows), _latest_event_id(client.revoke("k2").status, rows)
    assert handle({"action": "discard", "kind": "outbox", "all": True, **OPERATOR}, runtime, "a test")["ids"] == [
        str(failed)
    ]
    events = rows.execute("SELECT event_id, status, ready FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [tuple(event.values()) for event in events] == [(failed, "DISCARDED", False), (successor, "PENDING", True)]


def test_redriven_notification_keeps_its_id(runtime: RedriveRuntime, rows: Rows) -> None:
    """Q2 (b), Q4: even if it was swept meanwhile."""
    kept, swept = _dead_notification(rows), _dead_notification(rows, swept=True)
    done = handle({"action": "redrive", "kind": "notification", "all": True, **OPERATOR}, runtime, "a test")
    assert sorted(done["ids"]) == sorted([str(kept), str(swept)])
    redriven = rows.execute("SELECT notification_id, status, attempt_count FROM notifications").fetchall()
    assert {row["notification_id"]: (row["status"], row["attempt_count"]) for row in redriven} == {
        kept: ("PENDING", 0),
        swept: ("PENDING", 0),
    }
    again = handle({"action": "redrive", "kind": "notification", "ids": done["ids"], **OPERATOR}, runtime, "a test")
    assert (again["done"], again["skipped"]) == (0, {"not open: already closed, or unknown id": 2})


def test_discard_of_notification_closes_dead_letter(runtime: RedriveRuntime, rows: Rows) -> None:
    """Q3: nothing is sent."""
    dead_letter = _dead_notification(rows)
    assert handle({"action": "discard", "kind": "notification", "all": True, **OPERATOR}, runtime, "a test")["ids"] == [
        str(dead_letter)
    ]
    assert rows.execute("SELECT status FROM notification_dlq").fetchall() == [{"status": "DISCARDED"}]
    assert rows.execute("SELECT status FROM notifications").fetchall() == [{"status": "FAILED"}]


def test_dry_run_changes_nothing(environ: dict[str, str], client: Client, rows: Rows) -> None:
    """Q2: it reports what would be done, for every kind and both actions."""
    with Pipeline(environ) as pipeline:
        pipeline.publish_event()
        pipeline.terminate_next("bad")
        pipeline.wait_for_advisories(1)
        pipeline.run_recorder()
        failed, dead = _failed_event(client, rows), _dead_notification(rows)
        before = _table_contents(rows)
        (dead_letter,) = rows.execute("SELECT dead_letter_id FROM notification_nats_dlq").fetchall()
        expected = {"outbox": failed, "notification": dead, "nats": dead_letter["dead_letter_id"]}
        for kind, dead_letter_id in expected.items():
            for action in ("redrive", "discard"):
                done = pipeline.execute(action=action, kind=kind, all=True, dry_run=True)
                assert (done["dry_run"], done["ids"]) == (True, [str(dead_letter_id)])
        assert _table_contents(rows) == before
        assert pipeline.last_sequence() == 1
        actions = rows.execute("SELECT DISTINCT dry_run, count FROM operator_actions").fetchall()
        assert actions == [{"dry_run": True, "count": 1}]


def test_actor_reason_and_time_are_recorded(
    runtime: RedriveRuntime, client: Client, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    """Q2: one row for each batch, in the transaction of the change. G14: the log does not have the reason."""
    failed = _failed_event(client, rows)
    selection = {"event_type": "EntitlementGranted", "user_id": "u_123", "error": "broken", "newer_than": "1h"}
    handle({"action": "redrive", "kind": "outbox", "filter": selection, "force": True, **OPERATOR}, runtime, "a test")
    (action,) = rows.execute("SELECT *, now() - occurred_at < interval '1 minute' AS recent FROM operator_actions")
    assert (action["actor"], action["reason"], action["recent"]) == ("ann", "the decoder is repaired", True)
    assert (action["action"], action["kind"], action["dry_run"]) == ("redrive", "outbox", False)
    assert (action["dead_letter_ids"], action["count"]) == ([failed], 1)
    assert action["selection"] == {"filter": selection, "force": True}
    assert (action["source"], action["client_id"]) == ("a test", None)
    logged = capsys.readouterr().out
    assert "dead letter command executed" in logged
    assert "the decoder is repaired" not in logged


def test_change_is_rolled_back_if_action_cannot_be_recorded(
    runtime: RedriveRuntime, client: Client, rows: Rows
) -> None:
    """Q2: there is no redrive without a record of the operator."""
    _failed_event(client, rows)
    rows.execute("ALTER TABLE operator_actions ADD CONSTRAINT no_ann CHECK (actor <> 'ann')")
    with pytest.raises(Exception, match="no_ann"):
        handle({"action": "redrive", "kind": "outbox", "all": True, **OPERATOR}, runtime, "a test")
    assert rows.execute("SELECT status FROM outbox_events").fetchall() == [{"status": "FAILED"}]


def test_redrive_of_old_event_requires_force(runtime: RedriveRuntime, client: Client, rows: Rows) -> None:
    """Q2: the inbox may no longer know it; a discard needs no force."""
    failed = _failed_event(client, rows)
    (event,) = rows.execute("SELECT created_at + interval '30 days 1 microsecond' AS late FROM outbox_events")
    execute = runtime.dead_letters.execute
    request = {"action": "redrive", "kind": "outbox", "all": True, **OPERATOR}
    late = execute(DeadLetterCommand.parse(request), "a test", now=event["late"])
    assert (late.done, [len(ids) for ids in late.skipped.values()]) == ([], [1])
    on_time = execute(
        DeadLetterCommand.parse(request | {"dry_run": True}), "a test", now=event["late"] - timedelta(microseconds=1)
    )
    discard = execute(
        DeadLetterCommand.parse(request | {"action": "discard", "dry_run": True}), "a test", now=event["late"]
    )
    forced = execute(DeadLetterCommand.parse(request | {"force": True}), "a test", now=event["late"])
    assert [report.done for report in (on_time, discard, forced)] == [[failed]] * 3


@pytest.mark.parametrize(("limit", "more"), [(3, True), (4, False), (5, False)])
@pytest.mark.parametrize("action", ["list", "redrive", "discard"])
def test_report_says_whether_the_limit_left_dead_letters(
    environ: dict[str, str], rows: Rows, action: str, limit: int, *, more: bool
) -> None:
    """Q2: not if the limit is exactly their number."""
    _many_failed_events(rows, 4)
    runtime = RedriveRuntime.build(environ)
    request = {"action": action, "kind": "outbox", "all": True, "limit": limit, **OPERATOR}
    try:
        report = runtime.dead_letters.execute(DeadLetterCommand.parse(request), "a test")
    finally:
        runtime.close()
    assert (len(report.seen), report.more) == (min(limit, 4), more)


def test_command_runs_in_bounded_batches(environ: dict[str, str], rows: Rows) -> None:
    """Q2: each batch is committed on its own and reported; the limit is respected."""
    _many_failed_events(rows, 25)
    runtime = RedriveRuntime.build(environ)
    progress: list[tuple[int, int]] = []

    def record_progress(report: Report) -> None:
        (committed,) = rows.execute("SELECT count(*) AS n FROM outbox_events WHERE status = 'PENDING'").fetchall()
        progress.append((len(report.done), committed["n"]))

    request = {"action": "redrive", "kind": "outbox", "all": True, **OPERATOR}
    dead_letters = type(runtime.dead_letters)(
        runtime.dead_letters.database, runtime.dead_letters.republisher, timedelta(days=30), batch_size=10
    )
    try:
        limited = DeadLetterCommand.parse(request | {"limit": 15})
        first = dead_letters.execute(limited, "a test", on_batch=record_progress)
        rest = dead_letters.execute(DeadLetterCommand.parse(request), "a test", on_batch=record_progress)
    finally:
        runtime.close()
    assert progress == [(10, 10), (15, 15), (10, 25)]
    assert (len(first.done), first.more, len(rest.done), rest.more) == (15, True, 10, False)
    batches = rows.execute("SELECT count FROM operator_actions ORDER BY occurred_at").fetchall()
    assert [batch["count"] for batch in batches] == [10, 5, 10]


def test_concurrent_commands_change_each_dead_letter_once(environ: dict[str, str], rows: Rows) -> None:
    """Q2: a dead letter that one command has changed is skipped or not selected by the other."""
    _many_failed_events(rows, 200)

    def redrive(_: int) -> int:
        runtime = RedriveRuntime.build(environ)
        try:
            return int(
                handle({"action": "redrive", "kind": "outbox", "all": True, **OPERATOR}, runtime, "a test")["done"]
            )
        finally:
            runtime.close()

    assert sum(run_concurrently(2, redrive)) == 200
    (action,) = rows.execute("SELECT sum(count) AS n FROM operator_actions").fetchall()
    assert action["n"] == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "retry"}, "action must be one of list, redrive, discard, not 'retry'"),
        ({"kind": None}, "kind must be one of outbox, notification, nats"),
        ({"all": False}, 'exactly one of "ids", "filter" and "all": true'),
        ({"ids": [str(uuid.UUID(int=1))]}, 'exactly one of "ids", "filter" and "all": true'),
        ({"all": False, "ids": ["x"]}, "ids must be UUIDs"),
        ({"all": False, "ids": []}, "ids must be a list of 1 to 1000"),
        ({"all": False, "filter": {}}, "filter must be an object"),
        ({"all": False, "filter": {"sku": "u"}}, "unknown filter 'sku'; allowed: cause, event_type"),
        ({"all": False, "filter": {"older_than": "1 hour"}}, "filter.older_than must be a duration such as"),
        ({"all": "yes"}, "all must be true or false"),
        ({"dry_run": 1}, "dry_run must be true or false"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"actor": ""}, "actor must not be empty"),
        ({"reason": "\x00"}, "reason must not"),
        ({"why": "x"}, "unknown field 'why'; allowed: action"),
    ],
)
def test_invalid_command_is_refused_with_reason(change: dict[str, Any], message: str) -> None:
    """Q2: before anything is read or changed."""
    good = {"action": "redrive", "kind": "nats", "all": True, **OPERATOR}
    assert DeadLetterCommand.parse(good).actor == "ann"
    with pytest.raises(BadRequestError) as error:
        DeadLetterCommand.parse(good | change)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["actor", "reason"])
def test_actor_and_reason_are_required(name: str) -> None:
    """Q2: for every change, dry runs included; not for a list."""
    request = {"action": "discard", "kind": "outbox", "all": True, "dry_run": True, **OPERATOR}
    del request[name]
    with pytest.raises(BadRequestError, match=f"{name} is missing: state "):
        DeadLetterCommand.parse(request)
    assert DeadLetterCommand.parse({"action": "list", "kind": "outbox"}).limit == 100


def test_function_handles_its_event_file(
    runtime: RedriveRuntime, monkeypatch: pytest.MonkeyPatch, client: Client, rows: Rows
) -> None:
    """S2: a list returns the open dead letters."""
    failed = _failed_event(client, rows)
    monkeypatch.setattr(handler, "_runtime", LazyRuntime(lambda _: runtime))
    event = json.loads((ROOT / "infra" / "events" / "redrive_dead_letters.json").read_text())
    assert handler(event, None) == {"action": "list", "kind": "nats", "letters": [], "more": False}
    (dead_letter,) = handler({"action": "list", "kind": "outbox"}, None)["letters"]
    with pytest.raises(BadRequestError, match="action must be one of"):
        handler({}, None)
    assert (dead_letter["id"], dead_letter["user_id"], dead_letter["error"]) == (
        str(failed),
        "u_123",
        "the stream is broken",
    )


@pytest.mark.usefixtures("_command")
def test_make_redrive_does_the_same(
    environ: dict[str, str],
    client: Client,
    rows: Rows,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q2: with a dry run, readable output, and exit code 1 if a selected dead letter was skipped."""
    failed = _failed_event(client, rows)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    request = ["--kind", "outbox", "--error", "broken", "--reason", "NATS is back"]
    assert cli.redrive(["--kind", "outbox", "--list"], Progress()) == 0
    assert f"{failed}" in capsys.readouterr().out
    assert cli.redrive([*request, "--dry-run"], Progress()) == 0
    assert f"1 would be redriven:\n  {failed}\n" in capsys.readouterr().out
    assert cli.redrive([*request, "--actor", "bob"], Progress()) == 0
    assert f"1 redriven:\n  {failed}\n" in capsys.readouterr().out
    again = ["--kind", "outbox", "--discard", "--ids", str(failed), "--reason", "again"]
    assert cli.redrive(again, Progress()) == 1
    assert "1 skipped: not open" in capsys.readouterr().out
    (action,) = rows.execute("SELECT actor, reason FROM operator_actions WHERE NOT dry_run AND count > 0").fetchall()
    assert action == {"actor": "bob", "reason": "NATS is back"}


@pytest.mark.usefixtures("_command")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "nats", "--all", "--reason", "r"], "belong together"),
        (["--kind", "outbox", "--all"], "reason is missing"),
        (["--kind", "outbox", "--reason", "r"], "exactly one of"),
        (["--kind", "outbox", "--list"], "temporarily unavailable"),
    ],
)
def test_make_redrive_explains_errors(monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    """A message and what to do, without a traceback."""
    for name, value in {**PLAINTEXT, "DATABASE_URL": "postgresql://127.0.0.1:1/x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match=message):
        cli.redrive(arguments, Progress())


def _failed_event(client: Client, rows: Rows) -> uuid.UUID:
    """Grant an entitlement and make its event FAILED."""
    event_id = _latest_event_id(client.grant("k1").status, rows)
    rows.execute(
        "UPDATE outbox_events SET status = 'FAILED', ready = false, attempt_count = 10,"
        " last_error = 'the stream is broken'"
    )
    return event_id


def _latest_event_id(status: int, rows: Rows) -> uuid.UUID:
    assert status == 200
    (row,) = rows.execute("SELECT event_id FROM outbox_events ORDER BY aggregate_version DESC LIMIT 1").fetchall()
    event_id: uuid.UUID = row["event_id"]
    return event_id


def _many_failed_events(rows: Rows, count: int) -> None:
    rows.execute(
        """
        INSERT INTO outbox_events
               (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, failed_at)
        SELECT gen_random_uuid(), 'EntitlementGranted', 'u/' || n, 1, '{}', 'FAILED', false, now()
          FROM generate_series(1, %s) n""",
        (count,),
    )


def _dead_notification(rows: Rows, *, swept: bool = False) -> uuid.UUID:
    """Insert a FAILED notification with its dead letter, or the dead letter only."""
    names = "notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload, attempt_count"
    values = (uuid.uuid4(), uuid.uuid4(), "EntitlementGranted", "u_123", "item1", 1, "{}", 10)
    places = ", ".join(["%s"] * len(values))
    if not swept:
        rows.execute(
            f"INSERT INTO notifications ({names}, status, next_retry_at) VALUES ({places}, 'FAILED', NULL)",  # noqa: S608
            values,
        )
    rows.execute(f"INSERT INTO notification_dlq ({names}) VALUES ({places})", values)  # noqa: S608
    return values[0]


def _table_contents(rows: Rows) -> dict[str, Any]:
    return {table: rows.execute(f"SELECT * FROM {table}").fetchall() for table in DEAD_LETTER_TABLES}  # noqa: S608
