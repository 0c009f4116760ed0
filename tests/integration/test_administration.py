"""G4: every administrative action leaves a row with actor, reason, source and time, in its own transaction."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from functions.manage_clients.handler import handle as manage_clients
from grantwire import operator_actions
from grantwire.clients import store
from grantwire.errors import GrantwireError, RejectedError, RetryableError
from grantwire.operations import rebuild as executors
from grantwire.operations import redrive
from grantwire.operations.commands import REBUILD, VERIFY
from grantwire.read_model import from_record
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from tests.support.audit import audit_messages
from tests.support.commands import Operations
from tests.support.dead_letters import Pipeline, event_bytes
from tests.support.paths import ROOT
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import ACTOR_AND_REASON, clear_tables, entitlement, event_for, insert_entitlements
from tests.support.run import program_environment
from tests.support.servers import newest_postgres
from tests.support.workers.bridge_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.conftest import Rows

pytestmark = newest_postgres

SOURCE = "a test"
CREATE = {"action": "create", "name": "shop", "scopes": ["ops:read"], "expires_in": "90d", **ACTOR_AND_REASON}


class Context:
    """The parts of a Lambda context that name an invocation."""

    function_name = "grantwire-manage-clients"
    aws_request_id = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def clients(clients_url: str) -> Iterator[ClientsRuntime]:
    """The runtime of manage_clients."""
    runtime = ClientsRuntime.build({**PLAINTEXT, "DATABASE_URL": clients_url, "TOKEN_ENVIRONMENT": "dev"})
    yield runtime
    runtime.close()


@pytest.fixture
def operations(environ: dict[str, str], rows: Rows) -> Iterator[Operations]:
    """The executors of commands, with one entitlement that the read model lacks."""
    clear_tables(rows)
    insert_entitlements(rows, [entitlement("u", 1)])
    with Operations(environ) as operations:
        yield operations


def actions(rows: Rows) -> list[dict[str, Any]]:
    """Return the recorded actions without their ids, and check their times."""
    recorded = rows.execute(
        "SELECT *, now() - occurred_at < interval '1 minute' AS recent FROM operator_actions"
        " ORDER BY occurred_at, batch"
    ).fetchall()
    assert all(row.pop("recent") and row.pop("occurred_at") and row.pop("action_id") for row in recorded)
    return recorded


def expected(action: str, kind: str, selection: dict[str, Any], **columns: Any) -> dict[str, Any]:
    """Return a row of operator_actions as `actions` does."""
    return {
        **ACTOR_AND_REASON,
        "batch": 0,
        "action": action,
        "kind": kind,
        "selection": selection,
        "dry_run": False,
        "source": SOURCE,
        "dead_letter_ids": None,
        "client_id": None,
        "count": 1,
    } | columns


def test_actions_on_clients_are_recorded(clients: ClientsRuntime, rows: Rows) -> None:
    """G4: with the parameters of the command, but without a token or its hash. Lists and refusals are not recorded."""
    created = manage_clients(CREATE, clients, SOURCE)
    client_id = created["client_id"]
    rotation = {"action": "rotate", "client_id": client_id, "overlap": "1h", **ACTOR_AND_REASON}
    rotated = manage_clients(rotation, clients, SOURCE)
    revocation = {"action": "revoke", "client_id": client_id, **ACTOR_AND_REASON}
    manage_clients(revocation, clients, SOURCE)
    manage_clients(revocation, clients, SOURCE)
    manage_clients({"action": "list"}, clients, SOURCE)
    with pytest.raises(RejectedError, match="was revoked"):
        manage_clients(rotation, clients, SOURCE)
    selections: list[tuple[str, dict[str, Any], int]] = [
        (
            "create",
            {
                "name": "shop",
                "scopes": ["ops:read"],
                "expires_in": "90 days, 0:00:00",
                "rate_limit": None,
                "burst_limit": None,
            },
            1,
        ),
        ("rotate", {"overlap": "1:00:00", "expires_in": None}, 1),
        ("revoke", {"with_descendants": False}, 1),
        ("revoke", {"with_descendants": False}, 0),  # it was revoked already
    ]
    recorded = actions(rows)
    assert recorded == [
        expected(action, "client", selection, client_id=client_id, count=count)
        for action, selection, count in selections
    ]
    for token in (created["token"], rotated["token"]):
        assert token.rpartition("_")[2] not in str(recorded)


def test_source_names_function_and_request_and_is_no_part_of_the_event(clients: ClientsRuntime, rows: Rows) -> None:
    """G4: the entry point states where the command came from."""
    handler = TaskHandler("manage_clients", lambda _: clients, manage_clients, secret_result=True)
    handler(CREATE, Context())
    with pytest.raises(RejectedError, match="does not accept source"):
        handler(CREATE | {"name": "other", "source": "elsewhere"}, Context())
    (action,) = actions(rows)
    assert action["source"] == f"function {Context.function_name}, request {Context.aws_request_id}"


def test_rebuilds_are_recorded_and_verifications_are_not(
    environ: dict[str, str], operations: Operations, rows: Rows
) -> None:
    """G4: from the record one row for each pass, from the stream one for each batch, with its number of changes."""
    with Stream(environ) as stream:
        stream.publish(event_for(entitlement("u", 1)), b"not an event", event_for(entitlement("v", 1)))
    operations.execute(VERIFY, **ACTOR_AND_REASON)
    assert actions(rows) == []
    operations.execute(REBUILD, source="record", **ACTOR_AND_REASON)
    rows.execute("DELETE FROM user_entitlements")
    operations.execute(REBUILD, source="stream", **ACTOR_AND_REASON)
    name = environ["ENTITLEMENT_NATS_STREAM"]
    assert actions(rows) == [
        expected("rebuild", "read_model", {"source": "record"}),
        expected("rebuild", "read_model", {"source": "stream", "stream": name, "from_sequence": 1}, count=2),
    ]


def test_refused_event_does_not_roll_back_the_batch(
    environ: dict[str, str], operations: Operations, rows: Rows
) -> None:
    """G4, P2: the rest of its batch is projected and recorded, in one transaction."""
    rows.execute("ALTER TABLE user_entitlements ADD CONSTRAINT no_v CHECK (user_id <> 'v')")
    with Stream(environ) as stream:
        stream.publish(*(event_for(entitlement(user, 1)) for user in ("w", "v", "u")))
    report = operations.execute(REBUILD, source="stream")
    assert (report["events"], report["changed"], report["skipped"]) == (2, 2, 1)
    assert [action["count"] for action in actions(rows)] == [2]


def end_session_before(_record: Callable[..., None]) -> Callable[..., None]:
    """Return a function that ends its own database session instead of recording the action."""

    def replacement(tx: Any, *_: Any, **__: Any) -> None:
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    return replacement


def end_session_after(record: Callable[..., None]) -> Callable[..., None]:
    """Return a function that records the action and then ends its own database session."""

    def replacement(tx: Any, *arguments: Any, **keywords: Any) -> None:
        record(tx, *arguments, **keywords)
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    return replacement


@pytest.mark.parametrize("interrupt", [end_session_before, end_session_after])
@pytest.mark.parametrize("action", ["create", "rotate", "revoke"])
def test_interrupted_action_on_a_client_leaves_neither_change_nor_row(
    clients: ClientsRuntime, rows: Rows, monkeypatch: pytest.MonkeyPatch, action: str, interrupt: Any
) -> None:
    """G4: wherever the session ends before the commit."""
    client_id = manage_clients(CREATE | {"name": "first"}, clients, SOURCE)["client_id"]
    before = rows.execute("SELECT * FROM api_clients").fetchall()
    monkeypatch.setattr(store, "record_client", interrupt(operator_actions.record_client))
    command = CREATE if action == "create" else {"action": action, "client_id": client_id, **ACTOR_AND_REASON}
    with pytest.raises(RetryableError):
        manage_clients(command, clients, SOURCE)
    assert rows.execute("SELECT * FROM api_clients").fetchall() == before
    assert [row["action"] for row in actions(rows)] == ["create"]


@pytest.mark.parametrize("interrupt", [end_session_before, end_session_after])
@pytest.mark.parametrize("source", ["record", "stream"])
def test_interrupted_rebuild_leaves_neither_change_nor_row(
    request: pytest.FixtureRequest, operations: Operations, rows: Rows, source: str, interrupt: Any
) -> None:
    """G4: the transaction of a pass or batch has both or none."""
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    with Stream(request.getfixturevalue("environ")) as stream:
        stream.publish(event_for(entitlement("u", 1)))
    for module in (from_record, executors):
        monkeypatch.setattr(module, "record_rebuild", interrupt(operator_actions.record_rebuild))
    with pytest.raises(RetryableError):
        operations.execute(REBUILD, source=source)
    assert rows.execute("SELECT FROM user_entitlements").rowcount == 0
    assert actions(rows) == []


_DEAD_LETTERS = {
    "outbox": """
        INSERT INTO outbox_events
               (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, failed_at)
        VALUES (%(event_id)s, 'EntitlementGranted', 'u/s', 1, '{}', 'FAILED', false, now())""",
    "notification": """
        INSERT INTO notification_dlq (notification_id, event_id, event_type, user_id, stock_keeping_unit, version,
                                      payload, attempt_count)
        VALUES (gen_random_uuid(), %(event_id)s, 'EntitlementGranted', 'u_123', 'item1', 1, '{}', 10)""",
    "nats": """
        INSERT INTO notification_nats_dlq (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, subject,
                                           headers, payload, event_id, message_time, advised_at)
        VALUES (gen_random_uuid(), 's', 'bridge', 1, 'MSG_TERMINATED', 1, %(subject)s, '{}', %(payload)s,
                %(event_id)s, now(), now())""",
}
_TABLES = {"outbox": "outbox_events", "notification": "notification_dlq", "nats": "notification_nats_dlq"}


@pytest.mark.parametrize("interrupt", [end_session_before, end_session_after])
@pytest.mark.parametrize("kind", _DEAD_LETTERS)
@pytest.mark.parametrize("action", ["redrive", "discard"])
def test_interrupted_action_on_a_dead_letter_leaves_neither_change_nor_row(
    request: pytest.FixtureRequest, rows: Rows, action: str, kind: str, interrupt: Any
) -> None:
    """G4: wherever the session ends before the commit; nothing is published. The repeated command does both."""
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    event_id = uuid.uuid4()
    payload = event_bytes(event_id)
    with Pipeline(request.getfixturevalue("environ")) as pipeline:
        audit_messages(rows, [payload])
        subject = pipeline.topology.events.subject
        rows.execute(_DEAD_LETTERS[kind], {"event_id": event_id, "payload": payload, "subject": subject})
        statement = f"SELECT * FROM {_TABLES[kind]}"  # noqa: S608
        before = rows.execute(statement).fetchall()
        with monkeypatch.context() as interrupted:
            interrupted.setattr(redrive, "record_dead_letters", interrupt(operator_actions.record_dead_letters))
            with pytest.raises(RetryableError):
                pipeline.execute(action=action, kind=kind, all=True)
        assert rows.execute(statement).fetchall() == before
        assert (actions(rows), pipeline.last_sequence()) == ([], 0)
        assert pipeline.execute(action=action, kind=kind, all=True)["done"] == 1
        assert rows.execute(statement).fetchall() != before
    assert [(row["action"], row["kind"], row["count"]) for row in actions(rows)] == [(action, kind, 1)]


def test_action_that_cannot_be_recorded_is_not_performed(clients: ClientsRuntime, rows: Rows) -> None:
    """G4: for example if the role has lost the privilege to record it."""
    rows.execute("REVOKE ALL ON operator_actions FROM grantwire_clients")
    with pytest.raises(GrantwireError):
        manage_clients(CREATE, clients, SOURCE)
    assert rows.execute("SELECT FROM api_clients").rowcount == 0


_KILLED = """
import os, signal, sys
from grantwire import operator_actions
from grantwire.clients import store
from grantwire.clients.commands import ClientCommand
from grantwire.wiring.tasks.manage_clients import ClientsRuntime

record = store.record_client

def record_and_die(*arguments, **keywords):
    record(*arguments, **keywords)
    os.kill(os.getpid(), signal.SIGKILL)

store.record_client = record_and_die
command = {"action": "create", "name": "shop", "scopes": ["ops:read"], "actor": "ann", "reason": "r"}
ClientCommand.parse(command).execute(ClientsRuntime.build(os.environ).clients, "a test")
"""


def test_killed_process_leaves_neither_client_nor_row(clients_url: str, rows: Rows) -> None:
    """G4: the process dies after both statements, before the commit."""
    environ = {**program_environment(), **PLAINTEXT, "DATABASE_URL": clients_url, "TOKEN_ENVIRONMENT": "dev"}
    process = subprocess.run([sys.executable, "-c", _KILLED], env=environ, cwd=ROOT, capture_output=True, check=False)
    assert process.returncode == -9, process.stderr
    assert rows.execute("SELECT FROM api_clients").rowcount == 0
    assert actions(rows) == []
