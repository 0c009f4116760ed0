"""T1: commands of operators are stored once, executed in batches under a lease, and continued after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.operations import command_store
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsRuntime
from grantwire.workers.budget import Budget
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import Pipeline, budget, event_bytes, event_headers
from tests.support.operations import COMMAND, DISCARD, OPERATOR, REDRIVE, OpsClient
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.integration.conftest import Rows
    from tests.support.client import Client

COMMANDS = "/v1/ops/commands"
REBUILD = "/v1/ops/read-model/rebuild"
VERIFY = "/v1/ops/read-model/verify"
ALL = {"kind": "outbox", "all": True, **OPERATOR}


@pytest.fixture
def ops(database_url: str) -> Iterator[OpsClient]:
    """Caller of the operations API."""
    with OpsClient(database_url) as client:
        yield client


@pytest.fixture
def worker(environ: dict[str, str]) -> Iterator[OperatorCommandsRuntime]:
    """Worker that executes commands, in batches of three."""
    runtime = OperatorCommandsRuntime.build(environ, batch_size=3)
    yield runtime
    runtime.close()


def failed_events(rows: Rows, count: int) -> None:
    """Insert FAILED outbox events of different entitlements."""
    rows.execute(
        "INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready,"
        " failed_at, last_error)"
        " SELECT gen_random_uuid(), 'EntitlementGranted', 'u/' || n, 1, jsonb_build_object('user_id', 'u' || n),"
        " 'FAILED', false, now(), 'broken' FROM generate_series(1, %s) n",
        (count,),
    )


def states(rows: Rows) -> dict[str, int]:
    """Return how many outbox events have each status."""
    found = rows.execute("SELECT status, count(*) AS n FROM outbox_events GROUP BY status").fetchall()
    return {row["status"]: row["n"] for row in found}


def actions(rows: Rows) -> list[dict[str, Any]]:
    """Return the actions of operators, in the order of their batches."""
    return rows.execute("SELECT * FROM operator_actions ORDER BY action_id, batch").fetchall()


def test_command_is_executed_in_batches_and_leaves_its_actions(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1, G4: each batch has its row in operator_actions, with the id of the command."""
    failed_events(rows, 7)
    accepted = ops.post(REDRIVE, "k", ALL)
    assert ops.command(accepted)["status"] == "PENDING"
    assert states(rows) == {"FAILED": 7}
    assert worker.run(budget())["commands_done"] == 1
    command = ops.command(accepted)
    assert (command["status"], command["progress"]) == ("DONE", {"selected": 7, "done": 7, "skipped": {}})
    assert command["result"] == {"selected": 7, "done": 7, "skipped": {}, "more": False}
    assert (command["actor"], command["reason"], command["error"]) == ("ann", "repaired", None)
    assert command["arguments"] == {"kind": "outbox", "all": True}
    assert states(rows) == {"PENDING": 7}
    recorded = actions(rows)
    assert [(row["batch"], row["count"], str(row["action_id"])) for row in recorded] == [
        (number, count, command["command_id"]) for number, count in enumerate((3, 3, 1))
    ]
    assert {row["source"] for row in recorded} == {command["source"]}


def test_same_key_gets_the_same_response_and_stores_one_command(ops: OpsClient, rows: Rows) -> None:
    """T1: a repeat is a replay, byte for byte; another request with the key is a conflict."""
    first, second = (ops.post(REDRIVE, "k", ALL) for _ in range(2))
    assert (first.replayed, second.replayed) == (False, True)
    assert (first.status, first.body) == (second.status, second.body)
    assert ops.post(REDRIVE, "k", ALL | {"limit": 5}).code == "IDEMPOTENCY_KEY_CONFLICT"
    assert ops.post(DISCARD, "k", ALL).status == 202
    assert rows.execute("SELECT count(*) AS n FROM operator_commands").fetchall() == [{"n": 2}]


def test_concurrent_requests_with_one_key_store_one_command(database_url: str, rows: Rows) -> None:
    """T1: with real connections."""

    def send(_: int) -> Any:
        with OpsClient(database_url) as client:
            return client.post(REDRIVE, "k", ALL)

    responses = run_concurrently(6, send)
    assert len({response.body for response in responses}) == 1
    assert sum(not response.replayed for response in responses) == 1
    assert rows.execute("SELECT count(*) AS n FROM operator_commands").fetchall() == [{"n": 1}]


@newest_postgres
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "kind must be one of outbox, notification, nats"),
        ({"kind": "outbox"}, 'exactly one of "ids", "filter" and "all": true'),
        ({"kind": "outbox", "all": True, "action": "list"}, "unknown field 'action'; allowed: kind, ids"),
        ({"kind": "outbox", "all": True, "rate": 0}, "rate must be a whole number between 1 and 10000"),
        ({"kind": "outbox", "all": True, "rate": True}, "rate must be a whole number between 1 and 10000"),
        ({"kind": "outbox", "all": True, "rate": None}, "rate must be a whole number between 1 and 10000"),
        ({"kind": "outbox", "all": True, "limit": 0}, "limit must be a whole number between 1 and 100000"),
        ({"kind": "outbox", "ids": ["x"]}, "ids must be UUIDs"),
        ({"kind": "outbox", "ids": [str(uuid.UUID(int=1))] * 401}, "ids must be a list of 1 to 400 UUIDs"),
        ({"kind": "outbox", "filter": {"sku": "x"}}, "unknown filter 'sku'; allowed: cause"),
        ({"kind": "outbox", "all": True, "actor": " "}, "actor must not be empty"),
        ({"kind": "outbox", "all": True, "reason": None}, "reason must be a string"),
    ],
)
def test_invalid_command_is_refused_and_not_stored(
    ops: OpsClient, rows: Rows, body: dict[str, Any], message: str
) -> None:
    """T1: before anything is stored, so that the corrected request can use the same key."""
    response = ops.post(REDRIVE, "k", OPERATOR | body)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert message in response.json["message"]
    assert rows.execute("SELECT count(*) AS n FROM idempotency_keys").fetchall() == [{"n": 0}]


def test_actor_reason_and_key_are_required(ops: OpsClient) -> None:
    """T1, G4: of every command."""
    for path, body in ((REDRIVE, {"kind": "outbox", "all": True}), (REBUILD, {}), (VERIFY, {})):
        assert "actor is missing" in ops.post(path, "k", body).json["message"]
        assert "reason is missing" in ops.post(path, "k", body | {"actor": "ann"}).json["message"]
        without_key = ops.send("POST", path, body=json.dumps(body | OPERATOR))
        assert "Idempotency-Key header is missing" in without_key.json["message"]
    assert ops.send("POST", REDRIVE, body="{}", scopes="ops:read").code == "FORBIDDEN"


@pytest.mark.parametrize("body", [{"source": "backup"}, {"from_sequence": 7}, {"source": "stream", "from_sequence": 0}])
def test_invalid_rebuild_is_refused_and_not_stored(ops: OpsClient, rows: Rows, body: dict[str, Any]) -> None:
    """T1, P2: when it is given, not when it is executed."""
    response = ops.post(REBUILD, "k", OPERATOR | body)
    assert (response.status, response.code) == (400, "BAD_REQUEST")
    assert rows.execute("SELECT FROM operator_commands").rowcount == 0


def test_limit_ids_and_filter_select(ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows) -> None:
    """T1: at most `limit`; ids that are not open are counted as skipped; a group is a filter by its cause."""
    failed_events(rows, 8)
    limited = ops.post(DISCARD, "k1", ALL | {"limit": 4})
    worker.run(budget())
    assert ops.command(limited)["result"] == {"selected": 4, "done": 4, "skipped": {}, "more": True}
    (row,) = rows.execute("SELECT event_id FROM outbox_events WHERE status = 'FAILED' LIMIT 1").fetchall()
    ids = [str(row["event_id"]), str(uuid.UUID(int=7))]
    by_id = ops.post(REDRIVE, "k2", {"kind": "outbox", "ids": ids, **OPERATOR})
    other = ops.post(REDRIVE, "k3", {"kind": "outbox", "filter": {"cause": "other"}, **OPERATOR})
    worker.run(budget())
    assert ops.command(by_id)["progress"]["skipped"] == {"not open: already closed, or unknown id": 1}
    assert ops.command(other)["progress"] == {"selected": 0, "done": 0, "skipped": {}}
    group = ops.post(REDRIVE, "k4", {"kind": "outbox", "filter": {"cause": "broken"}, **OPERATOR})
    worker.run(budget())
    assert ops.command(group)["progress"]["done"] == 3
    assert states(rows) == {"DISCARDED": 4, "PENDING": 4}


@pytest.mark.parametrize(("limit", "more"), [(3, True), (4, False)])
def test_result_says_whether_the_limit_left_dead_letters(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows, limit: int, *, more: bool
) -> None:
    """T1: of a dry run and of a command; not if the limit is exactly their number."""
    failed_events(rows, 4)
    assert ops.post(DISCARD, "dry", ALL | {"limit": limit, "dry_run": True}).json["more"] == more
    limited = ops.post(DISCARD, "k", ALL | {"limit": limit})
    worker.run(budget())
    assert ops.command(limited)["result"] == {"selected": limit, "done": limit, "skipped": {}, "more": more}


def test_rate_delays_the_next_batch_and_other_commands_run_meanwhile(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: two a second; the command waits between its batches without a lease."""
    failed_events(rows, 5)
    slow = ops.post(REDRIVE, "slow", ALL | {"rate": 2})
    quick = ops.post(DISCARD, "quick", ALL | {"kind": "notification"})
    worker.run(budget())
    command = ops.command(slow)
    assert (command["status"], command["progress"]["done"]) == ("RUNNING", 2)
    assert ops.command(quick)["status"] == "DONE"
    (row,) = rows.execute(
        "SELECT locked_by, next_run_at - updated_at AS delay FROM operator_commands WHERE status = 'RUNNING'"
    ).fetchall()
    assert (row["locked_by"], row["delay"]) == (None, timedelta(seconds=1))
    for _ in range(2):
        rows.execute("UPDATE operator_commands SET next_run_at = now()")
        worker.run(budget())
    assert (ops.command(slow)["status"], states(rows)) == ("DONE", {"PENDING": 5})


@pytest.mark.parametrize("stop_at", ["commit", "publish"])
def test_killed_worker_is_continued_at_its_position(
    environ: dict[str, str], ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows, stop_at: str
) -> None:
    """T1: killed before the commit of its second batch, or after its messages were published; nothing is done twice."""
    with Pipeline(environ) as pipeline:
        if stop_at == "commit":
            failed_events(rows, 7)
        else:
            terminate_events(pipeline, 7)
        before = pipeline.last_sequence()
        body = ALL | {"kind": "outbox" if stop_at == "commit" else "nats"}
        accepted = ops.post(REDRIVE, "k", body)
        kill_when_reached(environ | {"STOP_AT": stop_at, "OPERATOR_COMMAND_LEASE": "2s"})
        interrupted = ops.command(accepted)
        assert (interrupted["status"], interrupted["progress"]["done"]) == ("RUNNING", 3)
        assert worker.run(budget())["commands_done"] == 0, "the lease must protect the command"
        rows.execute("UPDATE operator_commands SET lease_until = now() - interval '1 second'")
        assert worker.run(budget())["commands_done"] == 1
        command = ops.command(accepted)
        assert (command["status"], command["progress"]) == ("DONE", {"selected": 7, "done": 7, "skipped": {}})
        assert command["error"] is None
        recorded = actions(rows)
        assert len({row["batch"] for row in recorded}) == len(recorded)
        if stop_at == "commit":
            assert states(rows) == {"PENDING": 7}
            assert sum(row["count"] for row in recorded) == 7
        else:
            assert pipeline.last_sequence() == before + 7, "JetStream must have each message once more"
            assert len({dead_letter for row in recorded for dead_letter in row["dead_letter_ids"]}) == 7
            assert rows.execute("SELECT DISTINCT status FROM notification_nats_dlq").fetchall() == [
                {"status": "REDRIVEN"}
            ]


def test_command_that_is_inserted_by_hand_is_executed(worker: OperatorCommandsRuntime, rows: Rows) -> None:
    """T1: without the API, an operator with access to the database inserts the row; one that is not valid fails."""
    failed_events(rows, 2)
    for body in ('{"kind": "outbox", "all": true}', '{"kind": "outbox"}'):
        rows.execute(
            "INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source)"
            " VALUES (gen_random_uuid(), 'dead_letters.redrive', %s, 'ann', 'the API is away', 'psql')",
            (body,),
        )
    assert worker.run(budget())["commands_failed"] == 1
    found = rows.execute("SELECT status, done, last_error FROM operator_commands ORDER BY done").fetchall()
    assert [(row["status"], row["done"]) for row in found] == [("FAILED", 0), ("DONE", 2)]
    assert found[0]["last_error"].startswith("select dead letters with exactly one of")
    assert states(rows) == {"PENDING": 2}


def terminate_events(pipeline: Pipeline, count: int) -> None:
    """Publish events that become dead letters."""
    for _ in range(count):
        event_id = uuid.uuid4()
        pipeline.publish(event_bytes(event_id), event_headers(event_id))
        pipeline.terminate_next("bad")
    pipeline.wait_for_advisories(count)
    pipeline.run_recorder()


def kill_when_reached(environ: dict[str, str]) -> None:
    """Run the program that hangs, and kill it there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.workers.commands_stop"],
        env=os.environ | environ | {"PYTHONPATH": PYTHONPATH},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert any(line == "reached\n" for line in output)
        process.kill()
    process.wait()


def test_batch_without_the_lease_changes_nothing(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: a worker that was delayed for longer than its lease is fenced: its batch is rolled back."""
    failed_events(rows, 2)
    accepted = ops.post(REDRIVE, "k", ALL)
    original = command_store.begin_batch

    def steal(tx: psycopg.Connection[Any], token: str, command_id: uuid.UUID) -> int | None:
        rows.execute("UPDATE operator_commands SET locked_by = 'another worker'")
        return original(tx, token, command_id)

    monkeypatch.setattr(command_store, "begin_batch", steal)
    assert worker.run(budget())["leases_lost"] >= 1
    assert (states(rows), actions(rows)) == ({"FAILED": 2}, [])
    assert ops.command(accepted)["status"] == "RUNNING"
    monkeypatch.undo()
    rows.execute("UPDATE operator_commands SET lease_until = now() - interval '1 second'")
    worker.run(budget())
    assert (ops.command(accepted)["status"], states(rows)) == ("DONE", {"PENDING": 2})


def test_worker_without_the_lease_publishes_nothing(
    environ: dict[str, str],
    ops: OpsClient,
    worker: OperatorCommandsRuntime,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T1, Q2: the claim is checked before messages are published, because a message cannot be rolled back."""
    original = command_store.begin_batch

    def steal(tx: psycopg.Connection[Any], token: str, command_id: uuid.UUID) -> int | None:
        rows.execute("UPDATE operator_commands SET locked_by = 'another worker'")
        return original(tx, token, command_id)

    with Pipeline(environ) as pipeline:
        terminate_events(pipeline, 1)
        ops.post(REDRIVE, "k", ALL | {"kind": "nats"})
        monkeypatch.setattr(command_store, "begin_batch", steal)
        assert worker.run(budget())["leases_lost"] == 1
        assert pipeline.last_sequence() == 1
    assert rows.execute("SELECT redrive_id FROM notification_nats_dlq").fetchall() == [{"redrive_id": None}]


def test_lease_is_renewed_while_a_batch_runs(
    environ: dict[str, str], ops: OpsClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: a batch may take longer than the lease; another worker does not take its command."""
    failed_events(rows, 1)
    runtime = OperatorCommandsRuntime.build(environ | {"OPERATOR_COMMAND_LEASE": "2s"})
    other = OperatorCommandsRuntime.build(environ)
    original = command_store.begin_batch
    attempts: list[Any] = []

    def slow(tx: psycopg.Connection[Any], token: str, command_id: uuid.UUID) -> int | None:
        time.sleep(2.6)  # longer than the lease
        attempts.append(other.run(budget()))
        return original(tx, token, command_id)

    monkeypatch.setattr(command_store, "begin_batch", slow)
    ops.post(REDRIVE, "k", ALL)
    assert runtime.run(budget())["commands_done"] == 1
    assert [attempt["batches"] for attempt in attempts] == [0]
    for each in (runtime, other):
        each.close()


def test_command_waits_while_nats_is_unavailable(
    environ: dict[str, str], ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: its attempts are not counted, it shows why it waits, and other kinds do not need NATS."""
    with Pipeline(environ) as pipeline:
        terminate_events(pipeline, 1)
    failed_events(rows, 1)
    away = OperatorCommandsRuntime.build(environ | {"NATS_URL": "nats://127.0.0.1:1", "NATS_CONNECT_TIMEOUT": "200ms"})
    waiting = ops.post(REDRIVE, "k1", ALL | {"kind": "nats"})
    independent = ops.post(REDRIVE, "k2", ALL)
    for _ in range(3):
        away.run(budget())
        command = ops.command(waiting)
        assert (command["status"], command["attempts"]) == ("RUNNING", 0)
        assert command["error"].startswith("NATS is unreachable")
        rows.execute("UPDATE operator_commands SET next_run_at = now()")
    away.close()
    assert ops.command(independent)["status"] == "DONE"
    worker.run(budget())
    assert ops.command(waiting)["status"] == "DONE"


def test_command_that_always_fails_becomes_failed(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: after its last attempt; the error names no data of the bug."""
    failed_events(rows, 1)
    accepted = ops.post(REDRIVE, "k", ALL)

    def broken(*_arguments: Any) -> None:
        raise KeyError("personal data")

    monkeypatch.setattr(command_store, "begin_batch", broken)
    for _ in range(10):
        worker.run(budget())
        rows.execute("UPDATE operator_commands SET next_run_at = now()")
    command = ops.command(accepted)
    assert (command["status"], command["error"], command["result"]) == ("FAILED", "KeyError, see the log", None)
    assert ops.get("/v1/ops/status").json["commands"]["failed_last_day"] == 1
    assert worker.run(budget())["batches"] == 0


def test_command_that_kills_its_worker_becomes_failed(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: each expired lease counts as a failed attempt."""
    failed_events(rows, 1)
    accepted = ops.post(REDRIVE, "k", ALL)
    rows.execute(
        "UPDATE operator_commands SET status = 'RUNNING', started_at = now(), attempt_count = 9, locked_by = 'w',"
        " locked_at = now(), lease_until = now() - interval '1 second'"
    )
    assert worker.run(budget())["commands_failed"] == 1
    command = ops.command(accepted)
    assert (command["status"], command["attempts"]) == ("FAILED", 10)
    assert command["error"].startswith("interrupted too often")
    assert states(rows) == {"FAILED": 1}


def test_concurrent_workers_execute_each_command_once(environ: dict[str, str], ops: OpsClient, rows: Rows) -> None:
    """T1: invocations overlap."""
    failed_events(rows, 30)
    ids = [str(row["event_id"]) for row in rows.execute("SELECT event_id FROM outbox_events")]
    for number in range(6):
        body = {"kind": "outbox", "ids": ids[number * 5 : number * 5 + 5], **OPERATOR}
        assert ops.post(REDRIVE, f"k{number}", body).status == 202

    def run(_: int) -> Any:
        runtime = OperatorCommandsRuntime.build(environ, batch_size=3)
        try:
            return runtime.run(budget())
        finally:
            runtime.close()

    results = run_concurrently(3, run)
    assert sum(result["commands_done"] for result in results) == 6
    assert states(rows) == {"PENDING": 30}
    assert sum(row["count"] for row in actions(rows)) == 30


def test_worker_that_ends_releases_its_command(ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows) -> None:
    """T1: the next invocation continues at once, without waiting for the lease."""
    failed_events(rows, 9)
    accepted = ops.post(REDRIVE, "k", ALL)
    over = iter([False, False, False, True, True, True, True, True])
    clock_budget = Budget(1.0, clock=lambda: 2.0 if next(over, True) else 0.0)
    worker.run(clock_budget)
    command = ops.command(accepted)
    assert command["status"] == "RUNNING"
    assert 0 < command["progress"]["done"] < 9
    assert rows.execute("SELECT locked_by FROM operator_commands").fetchall() == [{"locked_by": None}]
    worker.run(budget())
    assert ops.command(accepted)["progress"]["done"] == 9


def test_rebuild_and_verify_of_the_read_model(
    ops: OpsClient, client: Client, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1, P2: verify counts and changes nothing; rebuild repairs, and leaves its actions."""
    for number in range(3):
        client.grant(f"k{number}", user_id=f"u{number}")
    rows.execute("INSERT INTO user_entitlements VALUES ('u0', 'item1', 'ACTIVE', 9, now())")
    verified = ops.post(VERIFY, "v1", OPERATOR)
    worker.run(budget())
    found = ops.command(verified)["result"]["found"]
    assert found == {"missing": 2, "behind": 0, "wrong": 0, "ahead": 1, "extra": 0}
    assert actions(rows) == []
    rebuilt = ops.post(REBUILD, "r", OPERATOR)
    worker.run(budget())
    command = ops.command(rebuilt)
    assert (command["status"], command["kind"]) == ("DONE", "read_model.rebuild")
    assert (command["result"]["found"], command["result"]["repaired"]) == (found, 3)
    assert command["result"]["complete"] is True
    assert {(str(row["action_id"]), row["action"], row["actor"]) for row in actions(rows)} == {
        (command["command_id"], "rebuild", "ann")
    }
    clean = ops.post(VERIFY, "v2", OPERATOR)
    worker.run(budget())
    assert sum(ops.command(clean)["result"]["found"].values()) == 0


def test_commands_are_listed_newest_first(ops: OpsClient, worker: OperatorCommandsRuntime) -> None:
    """T1: in pages, with one status or any; a full last page has no next one."""
    accepted = [ops.post(VERIFY, f"k{number}", OPERATOR).json["command_id"] for number in range(5)]
    worker.run(budget())
    accepted.append(ops.post(VERIFY, "last", OPERATOR).json["command_id"])
    first = ops.get(COMMANDS, limit="3").json
    second = ops.get(COMMANDS, limit="3", cursor=first["next_cursor"]).json
    assert "next_cursor" not in second
    listed = [command["command_id"] for command in first["commands"] + second["commands"]]
    assert listed == accepted[::-1]
    assert [c["command_id"] for c in ops.get(COMMANDS, status="PENDING").json["commands"]] == accepted[-1:]
    assert ops.get(COMMANDS, status="OPEN").code == "BAD_REQUEST"
    for command_id in (str(uuid.UUID(int=1)), "x"):
        assert ops.get(COMMAND, {"command_id": command_id}).code == "NOT_FOUND"


def test_dead_letters_that_appear_later_are_not_selected(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: a discard of all closes what the operator saw, not what failed before the worker came to it."""
    failed_events(rows, 2)
    accepted = ops.post(DISCARD, "k", ALL)
    failed_events_later = (
        "UPDATE outbox_events SET failed_at = now() WHERE event_id = (SELECT min(event_id::text)::uuid"
    )
    rows.execute(f"{failed_events_later} FROM outbox_events)")
    worker.run(budget())
    assert ops.command(accepted)["progress"]["done"] == 1
    assert states(rows) == {"DISCARDED": 1, "FAILED": 1}


def test_filter_by_age_refers_to_the_time_of_the_request(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: however late a batch runs, the selection is the one that the operator saw."""
    failed_events(rows, 2)
    rows.execute("UPDATE outbox_events SET failed_at = now() - interval '61 minutes'")
    accepted = ops.post(REDRIVE, "k", {"kind": "outbox", "filter": {"older_than": "1h"}, **OPERATOR})
    rows.execute("UPDATE operator_commands SET created_at = now() - interval '5 minutes'")
    worker.run(budget())
    assert ops.command(accepted)["progress"]["selected"] == 0


def test_command_passes_over_dead_letters_that_it_cannot_change(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows
) -> None:
    """T1: messages without a copy are counted with the reason, batch by batch, and the command ends."""
    rows.execute(
        "INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, advised_at)"
        " SELECT gen_random_uuid(), 's', 'c', n, 'MAX_DELIVERIES', 5, now() FROM generate_series(1, 7) n"
    )
    accepted = ops.post(REDRIVE, "k", ALL | {"kind": "nats"})
    worker.run(budget())
    progress = ops.command(accepted)["progress"]
    assert (progress["selected"], progress["done"], list(progress["skipped"].values())) == (7, 0, [7])
    assert actions(rows) == []


def test_batch_that_loses_its_lease_before_the_commit_is_rolled_back(
    ops: OpsClient, worker: OperatorCommandsRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: the outcome of a batch is fenced, too, so that two workers cannot both move a command on."""
    failed_events(rows, 2)
    ops.post(REDRIVE, "k", ALL)
    original = command_store.end_batch

    def lose(tx: psycopg.Connection[Any], token: str, *arguments: Any, **options: Any) -> int:
        return original(tx, f"not {token}", *arguments, **options)

    monkeypatch.setattr(command_store, "end_batch", lose)
    assert worker.run(Budget(time.monotonic() + 0.5))["leases_lost"] >= 1
    assert (states(rows), actions(rows)) == ({"FAILED": 2}, [])
