"""Q2, Q3: operators redrive and discard all kinds of dead letters, and every action is recorded."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import BadRequestError
from grantwire.operations import redrive
from grantwire.operations.commands import DISCARD, REDRIVE, OperatorCommand
from tests.support.commands import Operations
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows
    from tests.support.client import Client

OPERATOR = {"actor": "ann", "reason": "the decoder is repaired"}
DEAD_LETTER_TABLES = ("outbox_events", "notifications", "notification_dlq", "notification_nats_dlq")


@pytest.fixture
def operations(environ: dict[str, str]) -> Iterator[Operations]:
    """The executor of commands."""
    with Operations(environ) as operations:
        yield operations


def test_redrive_of_outbox_event_unblocks_its_aggregate(operations: Operations, client: Client, rows: Rows) -> None:
    """Q2 (a): PENDING with the same id, and attempts counted from zero."""
    failed, successor = _failed_event(client, rows), _latest_event_id(client.revoke("k2").status, rows)
    done = operations.execute(REDRIVE, kind="outbox", ids=[str(failed)])
    assert (done["done"], done["skipped"]) == (1, {})
    events = rows.execute(
        "SELECT event_id, status, attempt_count, ready FROM outbox_events ORDER BY aggregate_version"
    ).fetchall()
    assert [tuple(event.values()) for event in events] == [
        (failed, "PENDING", 0, True),
        (successor, "PENDING", 0, False),
    ]


def test_discard_of_outbox_event_unblocks_its_aggregate(operations: Operations, client: Client, rows: Rows) -> None:
    """Q3: the next event of the aggregate becomes its head."""
    failed, successor = _failed_event(client, rows), _latest_event_id(client.revoke("k2").status, rows)
    assert operations.execute(DISCARD, kind="outbox", all=True)["done"] == 1
    events = rows.execute("SELECT event_id, status, ready FROM outbox_events ORDER BY aggregate_version").fetchall()
    assert [tuple(event.values()) for event in events] == [(failed, "DISCARDED", False), (successor, "PENDING", True)]


def test_redriven_notification_keeps_its_id(operations: Operations, rows: Rows) -> None:
    """Q2 (b), Q4: even if it was swept meanwhile."""
    kept, swept = _dead_notification(rows), _dead_notification(rows, swept=True)
    assert operations.execute(REDRIVE, kind="notification", all=True)["done"] == 2
    redriven = rows.execute("SELECT notification_id, status, attempt_count FROM notifications").fetchall()
    assert {row["notification_id"]: (row["status"], row["attempt_count"]) for row in redriven} == {
        kept: ("PENDING", 0),
        swept: ("PENDING", 0),
    }
    again = operations.execute(REDRIVE, kind="notification", ids=[str(kept), str(swept)])
    assert (again["done"], again["skipped"]) == (0, {"not open: already closed, or unknown id": 2})


def test_dead_letter_whose_event_has_another_notification_is_skipped(operations: Operations, rows: Rows) -> None:
    """Q2: the receiver would get the event twice; the report says that it was not changed."""
    swept = _dead_notification(rows, swept=True)
    rows.execute(
        "INSERT INTO notifications"
        " (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)"
        " SELECT gen_random_uuid(), event_id, event_type, user_id, stock_keeping_unit, version, payload"
        "   FROM notification_dlq WHERE notification_id = %s",
        (swept,),
    )
    done = operations.execute(REDRIVE, kind="notification", all=True)
    reason = "not changed: closed by another command meanwhile, or its event has another notification"
    assert (done["selected"], done["done"], done["skipped"]) == (1, 0, {reason: 1})


def test_discard_of_notification_closes_dead_letter(operations: Operations, rows: Rows) -> None:
    """Q3: nothing is sent."""
    _dead_notification(rows)
    assert operations.execute(DISCARD, kind="notification", all=True)["done"] == 1
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


def test_actor_reason_and_time_are_recorded(operations: Operations, client: Client, rows: Rows) -> None:
    """Q2: one row for each batch, in the transaction of the change."""
    failed = _failed_event(client, rows)
    selection = {"event_type": "EntitlementGranted", "user_id": "u_123", "error": "broken", "newer_than": "1h"}
    operations.execute(REDRIVE, kind="outbox", filter=selection, force=True, reason=OPERATOR["reason"])
    (action,) = rows.execute("SELECT *, now() - occurred_at < interval '1 minute' AS recent FROM operator_actions")
    assert (action["actor"], action["reason"], action["recent"]) == ("ann", "the decoder is repaired", True)
    assert (action["action"], action["kind"], action["dry_run"]) == ("redrive", "outbox", False)
    assert (action["dead_letter_ids"], action["count"]) == ([failed], 1)
    assert action["selection"] == {"filter": selection, "force": True}
    assert (action["source"], action["client_id"]) == ("a test", None)


def test_change_is_rolled_back_if_action_cannot_be_recorded(operations: Operations, client: Client, rows: Rows) -> None:
    """Q2: there is no redrive without a record of the operator."""
    _failed_event(client, rows)
    rows.execute("ALTER TABLE operator_actions ADD CONSTRAINT no_ann CHECK (actor <> 'ann')")
    with pytest.raises(Exception, match="no_ann"):
        operations.execute(REDRIVE, kind="outbox", all=True)
    assert rows.execute("SELECT status FROM outbox_events").fetchall() == [{"status": "FAILED"}]


def test_redrive_of_old_event_requires_force(operations: Operations, client: Client, rows: Rows) -> None:
    """Q2: the inbox may no longer know it; a discard needs no force."""
    failed = _failed_event(client, rows)
    (event,) = rows.execute("SELECT created_at + interval '30 days 1 microsecond' AS late FROM outbox_events")
    request: dict[str, Any] = {"kind": "outbox", "all": True, "now": event["late"]}
    late = operations.execute(REDRIVE, **request)
    assert (late["done"], list(late["skipped"].values())) == (0, [1])
    on_time = request | {"now": event["late"] - timedelta(microseconds=1)}
    dry_runs = [
        operations.execute(REDRIVE, **on_time, dry_run=True),
        operations.execute(DISCARD, **request, dry_run=True),
        operations.execute(REDRIVE, **request, force=True, dry_run=True),
    ]
    assert [report["ids"] for report in dry_runs] == [[str(failed)]] * 3
    assert operations.execute(REDRIVE, **request, force=True)["done"] == 1


@pytest.mark.parametrize(("limit", "more"), [(3, True), (4, False), (5, False)])
@pytest.mark.parametrize("kind", [REDRIVE, DISCARD])
def test_report_says_whether_the_limit_left_dead_letters(
    operations: Operations, rows: Rows, kind: str, limit: int, *, more: bool
) -> None:
    """Q2: not if the limit is exactly their number; a dry run says the same."""
    _many_failed_events(rows, 4)
    for dry_run in (True, False):
        report = operations.execute(kind, kind="outbox", all=True, limit=limit, dry_run=dry_run)
        assert (report["selected"], report["more"]) == (min(limit, 4), more)


def test_dry_run_examines_batch_after_batch(
    operations: Operations, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2: up to its maximum, and leaves a row for each batch."""
    _many_failed_events(rows, 25)
    monkeypatch.setattr(redrive, "BATCH_SIZE", 10)
    report = operations.execute(REDRIVE, kind="outbox", all=True, dry_run=True)
    assert (report["selected"], len(set(report["ids"])), report["more"]) == (25, 25, False)
    monkeypatch.setattr(redrive, "MAX_EXAMINED", 15)
    report = operations.execute(REDRIVE, kind="outbox", all=True, dry_run=True)
    assert (report["selected"], report["would_change"], report["more"]) == (15, 15, True)
    batches = rows.execute("SELECT batch, count FROM operator_actions ORDER BY occurred_at, batch").fetchall()
    assert [tuple(row.values()) for row in batches] == [(0, 10), (1, 10), (2, 5), (0, 10), (1, 5)]


def test_command_runs_in_bounded_batches(environ: dict[str, str], rows: Rows) -> None:
    """Q2: each batch is committed on its own and reported; the limit is respected."""
    _many_failed_events(rows, 25)
    progress: list[tuple[int, int]] = []

    def record_progress(report: dict[str, Any]) -> None:
        (committed,) = rows.execute("SELECT count(*) AS n FROM outbox_events WHERE status = 'PENDING'").fetchall()
        progress.append((report["done"], committed["n"]))

    with Operations(environ, batch_size=10) as operations:
        first = operations.execute(REDRIVE, kind="outbox", all=True, limit=15, on_batch=record_progress)
        rest = operations.execute(REDRIVE, kind="outbox", all=True, on_batch=record_progress)
    assert progress == [(10, 10), (15, 15), (10, 25)]
    assert (first["done"], first["more"], rest["done"], rest["more"]) == (15, True, 10, False)
    batches = rows.execute("SELECT count FROM operator_actions ORDER BY occurred_at").fetchall()
    assert [batch["count"] for batch in batches] == [10, 5, 10]


def test_concurrent_commands_change_each_dead_letter_once(environ: dict[str, str], rows: Rows) -> None:
    """Q2: a dead letter that one command has changed is skipped or not selected by the other."""
    _many_failed_events(rows, 200)

    def execute(_: int) -> int:
        with Operations(environ) as operations:
            return int(operations.execute(REDRIVE, kind="outbox", all=True)["done"])

    assert sum(run_concurrently(2, execute)) == 200
    (action,) = rows.execute("SELECT sum(count) AS n FROM operator_actions").fetchall()
    assert action["n"] == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": None}, "kind must be one of outbox, notification, nats"),
        ({"all": False}, 'exactly one of "ids", "filter" and "all": true'),
        ({"ids": [str(uuid.UUID(int=1))]}, 'exactly one of "ids", "filter" and "all": true'),
        ({"all": False, "ids": ["x"]}, "ids must be UUIDs"),
        ({"all": False, "ids": []}, "ids must be a list of 1 to 400"),
        ({"all": False, "filter": {}}, "filter must be an object"),
        ({"all": False, "filter": {"sku": "u"}}, "unknown filter 'sku'; allowed: cause, event_type"),
        ({"all": False, "filter": {"older_than": "1 hour"}}, "filter.older_than must be a duration such as"),
        ({"all": "yes"}, "all must be true or false"),
        ({"dry_run": 1}, "dry_run must be true or false"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"actor": ""}, "actor must not be empty"),
        ({"reason": "\x00"}, "reason must not"),
        ({"why": "x"}, "unknown field 'why'; allowed: kind"),
    ],
)
def test_invalid_command_is_refused_with_reason(change: dict[str, Any], message: str) -> None:
    """Q2: before anything is read or changed."""
    good = {"kind": "nats", "all": True, **OPERATOR}
    assert OperatorCommand.parse(REDRIVE, good, "a test").operator.actor == "ann"
    with pytest.raises(BadRequestError) as error:
        OperatorCommand.parse(REDRIVE, good | change, "a test")
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["actor", "reason"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_actor_and_reason_are_required(name: str, *, dry_run: bool) -> None:
    """Q2: for every command, dry runs included."""
    request = {"kind": "outbox", "all": True, "dry_run": dry_run, **OPERATOR}
    del request[name]
    with pytest.raises(BadRequestError, match=f"{name} is missing: state "):
        OperatorCommand.parse(DISCARD, request, "a test")


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
