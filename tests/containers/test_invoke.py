"""S2: every function runs with `sam local invoke` and its event file, and writes the expected rows.

The steps that come before the tested function run in this process.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import Scope
from grantwire.database.migrations import read_schema
from grantwire.operator_actions import Operator
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from grantwire.wiring.workers.bridge_events import BridgeRuntime
from grantwire.wiring.workers.relay_outbox import RelayRuntime
from infra.local.deployment.template import logical_names
from infra.local.servers.nats_users import TOPOLOGY
from tests.support.checks import CHECK
from tests.support.client import BATCHES, ENTITLEMENTS, EXTENSIONS, GRANTS, INBOX, REVOKES, SUMMARY, Client
from tests.support.contract import assert_matches_contract
from tests.support.dead_letters import Pipeline, budget, event_headers
from tests.support.feed import CHANGES
from tests.support.nats_users import as_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.containers.conftest import Rows
    from tests.containers.sandbox import Sandbox
    from tests.support.servers import Databases


EXPIRED = """
INSERT INTO idempotency_keys (caller, route, idempotency_key, request_hash, status_code, response_body, created_at,
       expires_at)
VALUES ('c', 'r', 'k', 'h', 200, '', now() - interval '2 days', now() - interval '1 day')
"""


def test_every_function_has_a_test_here() -> None:
    """The name of a test begins with the name of its function."""
    tests = [name for name in globals() if name.startswith("test_")]
    assert [name for name in logical_names() if not any(test.startswith(f"test_{name}_") for test in tests)] == []


def test_grant_creates_the_entitlement_and_its_event(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """E1, O1: the entitlement is ACTIVE, and its outbox event is PENDING."""
    granted = _body("POST", GRANTS, sandbox.invoke("grant", environ))
    assert (granted["user_id"], granted["stock_keeping_unit"], granted["version"]) == ("u_123", "item1", 1)
    assert _entitlements(rows) == [("ACTIVE", 1)]
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING")]


def test_revoke_changes_the_entitlement_and_creates_its_event(
    sandbox: Sandbox, environ: dict[str, str], rows: Rows
) -> None:
    """E2, O1: the entitlement is REVOKED, and its outbox event is PENDING."""
    _grant(environ)
    revoked = _body("POST", REVOKES, sandbox.invoke("revoke", environ))
    assert (revoked["status"], revoked["version"]) == ("REVOKED", 2)
    assert _entitlements(rows) == [("REVOKED", 2)]
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING"), ("EntitlementRevoked", 2, "PENDING")]


def test_extend_moves_the_end(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """K5: the entitlement has the end of the event file."""
    _grant(environ)
    extended = _body("POST", EXTENSIONS, sandbox.invoke("extend", environ))
    assert (extended["expires_at"], extended["version"]) == ("2099-01-01T00:00:00.000000Z", 2)
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING"), ("EntitlementExtended", 2, "PENDING")]


def test_expire_entitlements_records_an_end(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """K4: an entitlement that has ended is EXPIRED, with an event."""
    _grant(environ)
    rows.execute("UPDATE entitlements SET expires_at = now()")
    assert sandbox.invoke("expire_entitlements", environ)["expired"] == 1
    assert _entitlements(rows) == [("EXPIRED", 2)]
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING"), ("EntitlementExpired", 2, "PENDING")]


def test_change_batch_executes_its_items(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """K6: two grants and a revoke, with an event for each."""
    results = _body("POST", BATCHES, sandbox.invoke("change_batch", environ))["results"]
    assert [result["response"]["version"] for result in results] == [1, 1, 2]
    assert sorted(_entitlements(rows)) == [("ACTIVE", 1), ("REVOKED", 2)]
    assert len(_events(rows)) == 3


def test_query_lists_the_entitlements(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """E3: a granted entitlement is listed as ACTIVE."""
    _grant(environ)
    (entitlement,) = _body("GET", ENTITLEMENTS, sandbox.invoke("query", environ))["entitlements"]
    assert (entitlement["stock_keeping_unit"], entitlement["status"]) == ("item1", "ACTIVE")


def test_check_entitlement_allows_the_item(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """K1: a granted entitlement is allowed."""
    _grant(environ)
    checked = _body("GET", CHECK, sandbox.invoke("check_entitlement", environ))
    assert (checked["stock_keeping_unit"], checked["allowed"]) == ("item1", True)


def test_list_changes_returns_the_change(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """K9: the grant is in the feed."""
    _grant(environ)
    (change,) = _body("GET", CHANGES, sandbox.invoke("list_changes", environ))["changes"]
    assert (change["event_type"], change["version"]) == ("EntitlementGranted", 1)


def test_relay_outbox_publishes_the_event(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """O2: the event is in the stream."""
    _grant(environ)
    assert sandbox.invoke("relay_outbox", environ)["published"] == 1
    assert _events(rows) == [("EntitlementGranted", 1, "PUBLISHED")]
    with Pipeline(environ) as pipeline:
        assert pipeline.last_sequence() == 1


def test_bridge_events_creates_the_notification(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """N2: there is one notification for the event, and the inbox has its id."""
    _publish(environ)
    sandbox.invoke("bridge_events", environ)
    assert _notifications(rows) == [("EntitlementGranted", "u_123", "PENDING")]
    assert rows.execute("SELECT FROM processed_events").rowcount == 1


def test_deliver_notifications_sends_the_notification(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """D1: the notification is SENT."""
    _bridge(environ)
    sandbox.invoke("deliver_notifications", environ)
    assert _notifications(rows) == [("EntitlementGranted", "u_123", "SENT")]


def test_show_inbox_lists_the_notifications(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """D4: the route is enabled in this stage."""
    _bridge(environ)
    (notification,) = _body("GET", INBOX, sandbox.invoke("show_inbox", environ))["notifications"]
    assert (notification["event_type"], notification["status"]) == ("EntitlementGranted", "PENDING")


def test_show_summary_shows_the_entitlements(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """P1: the summary has the entitlements that the bridge projected."""
    _bridge(environ)
    summary = _body("GET", SUMMARY, sandbox.invoke("show_summary", environ))
    assert (summary["active"], summary["active_rights"]) == (1, ["item1"])


def test_record_advisories_records_a_dead_letter(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """Q1: a message that the bridge terminated is recorded with its bytes."""
    _publish_unreadable_message(environ)
    assert sandbox.invoke("record_advisories", environ)["recorded"] == 1
    (dead_letter,) = rows.execute("SELECT kind, payload FROM notification_nats_dlq").fetchall()
    assert dead_letter == {"kind": "MSG_TERMINATED", "payload": b"poison"}


def test_authorize_caller_denies_the_token_of_the_event_file(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """E5: no client has this token."""
    policy = sandbox.invoke("authorize_caller", environ)
    assert [statement["Effect"] for statement in policy["policyDocument"]["Statement"]] == ["Deny"]


def test_manage_clients_lists_the_clients(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """The list contains no tokens."""
    clients = ClientsRuntime.build(environ | {"DATABASE_URL": environ["CLIENTS_DATABASE_URL"]})
    with contextlib.closing(clients) as runtime:
        token = runtime.clients.create(Operator("ann", "a test", "tests"), "shop", [Scope.READ_ENTITLEMENTS]).token
    (listed,) = sandbox.invoke("manage_clients", environ)["clients"]
    assert (listed["client_id"], listed["name"], listed["scopes"]) == (token.client_id, "shop", ["entitlements:read"])


def test_operations_shows_the_status(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """T1: one event is pending."""
    _grant(environ)
    assert _body("GET", "/v1/ops/status", sandbox.invoke("operations", environ))["outbox"]["pending"] == 1


def test_operate_clients_lists_the_clients(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """T1: with the role of the clients' administration."""
    assert _body("GET", "/v1/ops/clients", sandbox.invoke("operate_clients", environ)) == {"clients": []}


def test_run_operator_commands_reports_its_run(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """T1: it leaves a heartbeat."""
    sandbox.invoke("run_operator_commands", environ)
    assert rows.execute("SELECT worker, outcome FROM worker_heartbeats").fetchall() == [
        {"worker": "run_operator_commands", "outcome": "OK"}
    ]


def test_console_serves_the_page(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """T5: the page and the headers that confine it."""
    response = sandbox.invoke("console", environ)
    assert (response["statusCode"], "Grantwire" in response["body"]) == (200, True)
    assert response["headers"]["Content-Security-Policy"].startswith("default-src 'none'; ")


def test_sweep_retention_deletes_expired_rows(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """R1: an expired idempotency key is deleted."""
    rows.execute(EXPIRED)
    swept = sandbox.invoke("sweep_retention", environ)
    assert (swept["deleted"], swept["complete"]) == ({"idempotency_keys": 1}, True)
    assert rows.execute("SELECT FROM idempotency_keys").rowcount == 0


def test_migrate_database_creates_the_schema(sandbox: Sandbox, databases: Databases, environ: dict[str, str]) -> None:
    """S1: in an empty database, with the files of its build."""
    url = databases.empty()
    try:
        applied = sandbox.invoke("migrate_database", environ | {"DATABASE_URL": url})["applied"]
        schema = read_schema()
        assert applied == [file.name for file in (*schema.migrations, *schema.definitions)]
        with Client(url) as client:
            assert client.grant("p_456").status == 200
    finally:
        databases.drop(url)


def test_configure_streams_creates_the_streams_once(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """N3: in an empty account, the first call creates everything, and the second call changes nothing."""
    name = f"OTHER_{uuid.uuid4().hex[:8]}"
    other = as_user(environ, TOPOLOGY) | {
        "ENTITLEMENT_NATS_SUBJECT": f"entitlements.{name}",
        "ENTITLEMENT_NATS_STREAM": name,
        "NOTIFICATION_NATS_ADVISORY_STREAM": f"{name}_ADVISORIES",
    }
    created = sandbox.invoke("configure_streams", other)["created"]
    assert created[:2] == [f"stream {name}_ADVISORIES", f"stream {name}"]
    assert sandbox.invoke("configure_streams", other) == {"created": [], "updated": []}


def _grant(environ: Mapping[str, str]) -> None:
    with Client(environ["DATABASE_URL"]) as client:
        assert client.grant("p_456").status == 200


def _publish(environ: Mapping[str, str]) -> None:
    _grant(environ)
    with contextlib.closing(RelayRuntime.build(environ)) as relay:
        relay.run(budget())


def _bridge(environ: Mapping[str, str]) -> None:
    _publish(environ)
    with contextlib.closing(BridgeRuntime.build(environ)) as bridge:
        bridge.run(budget())


def _publish_unreadable_message(environ: Mapping[str, str]) -> None:
    with Pipeline(environ) as pipeline:
        pipeline.publish(b"poison", event_headers(uuid.uuid4()))
        pipeline.run_bridge()
        pipeline.wait_for_advisories(1)


def _body(method: str, path: str, response: Mapping[str, Any]) -> Any:
    """Return the body of a response after checking the response against openapi.yaml."""
    assert response["statusCode"] == 200, response
    assert_matches_contract(method, path, response["statusCode"], response["headers"], response["body"])
    return json.loads(response["body"])


def _entitlements(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.execute("SELECT status, version FROM entitlements")]


def _events(rows: Rows) -> list[tuple[Any, ...]]:
    select = "SELECT event_type, aggregate_version, status FROM outbox_events ORDER BY aggregate_version"
    return [tuple(row.values()) for row in rows.execute(select)]


def _notifications(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.execute("SELECT event_type, user_id, status FROM notifications")]
