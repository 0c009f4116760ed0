"""S2: every function answers `sam local invoke` with its event file, and writes what it should.

What comes before a function on the way of a right is done in this process.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import Scope
from grantwire.database.migrations import read_schema
from grantwire.runtime.bridge import BridgeRuntime
from grantwire.runtime.clients import CallerRuntime
from grantwire.runtime.relay import RelayRuntime
from infra.local.deployment.template import logical_names
from tests.support.client import ENTITLEMENTS, GRANTS, INBOX, REVOKES, SUMMARY, Client
from tests.support.contract import assert_matches_contract
from tests.support.dead_letters import Pipeline, budget, event_headers
from tests.support.paths import MIGRATIONS, SQL

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


def test_every_function_is_invoked_here() -> None:
    """A new function needs a test of this name."""
    tests = [name for name in globals() if name.startswith("test_")]
    assert [name for name in logical_names() if not any(test.startswith(f"test_{name}_") for test in tests)] == []


def test_grant_gives_the_right_and_enqueues_its_event(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """E1, O1."""
    right = _body("POST", GRANTS, sandbox.invoke("grant", environ))
    assert (right["user_id"], right["stock_keeping_unit"], right["version"]) == ("u_123", "item1", 1)
    assert _rights(rows) == [("ACTIVE", 1)]
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING")]


def test_revoke_takes_the_right_and_enqueues_its_event(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """E2, O1."""
    _grant(environ)
    right = _body("POST", REVOKES, sandbox.invoke("revoke", environ))
    assert (right["status"], right["version"]) == ("REVOKED", 2)
    assert _rights(rows) == [("REVOKED", 2)]
    assert _events(rows) == [("EntitlementGranted", 1, "PENDING"), ("EntitlementRevoked", 2, "PENDING")]


def test_query_lists_the_rights(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """E3."""
    _grant(environ)
    (right,) = _body("GET", ENTITLEMENTS, sandbox.invoke("query", environ))["entitlements"]
    assert (right["stock_keeping_unit"], right["status"]) == ("item1", "ACTIVE")


def test_relay_outbox_publishes(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """O2: the event is in the stream."""
    _grant(environ)
    assert sandbox.invoke("relay_outbox", environ)["published"] == 1
    assert _events(rows) == [("EntitlementGranted", 1, "PUBLISHED")]
    with Pipeline(environ) as pipeline:
        assert pipeline.last_sequence() == 1


def test_bridge_events_makes_the_notification(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """N2: one for the event, which the inbox remembers."""
    _publish(environ)
    sandbox.invoke("bridge_events", environ)
    assert _notifications(rows) == [("EntitlementGranted", "u_123", "PENDING")]
    assert rows.execute("SELECT FROM processed_events").rowcount == 1


def test_deliver_notifications_sends(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """D1."""
    _bridge(environ)
    sandbox.invoke("deliver_notifications", environ)
    assert _notifications(rows) == [("EntitlementGranted", "u_123", "SENT")]


def test_show_inbox_lists_the_notifications(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """D4: where it is switched on."""
    _bridge(environ)
    (told,) = _body("GET", INBOX, sandbox.invoke("show_inbox", environ))["notifications"]
    assert (told["event_type"], told["status"]) == ("EntitlementGranted", "PENDING")


def test_show_summary_shows_the_rights(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """P1: what the bridge has projected."""
    _bridge(environ)
    summary = _body("GET", SUMMARY, sandbox.invoke("show_summary", environ))
    assert (summary["active"], summary["active_rights"]) == (1, ["item1"])


def test_rebuild_read_model_compares(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """P2: the event file's order changes nothing; here the event has not been bridged yet."""
    _grant(environ)
    report = sandbox.invoke("rebuild_read_model", environ)
    assert (report["dry_run"], report["found"]["missing"]) == (True, 1)
    assert rows.execute("SELECT FROM user_entitlements").rowcount == 0


def test_record_advisories_records_a_dead_letter(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """Q1: what the bridge refused, with its bytes."""
    _poison(environ)
    assert sandbox.invoke("record_advisories", environ)["recorded"] == 1
    (letter,) = rows.execute("SELECT kind, payload FROM notification_nats_dlq").fetchall()
    assert letter == {"kind": "MSG_TERMINATED", "payload": b"poison"}


def test_redrive_dead_letters_lists_them(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """Q2: the event file's order changes nothing."""
    _poison(environ)
    with Pipeline(environ) as pipeline:
        pipeline.run_recorder()
    report = sandbox.invoke("redrive_dead_letters", environ)
    assert (report["action"], report["kind"], len(report["letters"])) == ("list", "nats", 1)


def test_authorize_caller_denies_the_token_of_the_event_file(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """E5: it was never given to anybody."""
    policy = sandbox.invoke("authorize_caller", environ)
    assert [one["Effect"] for one in policy["policyDocument"]["Statement"]] == ["Deny"]


def test_manage_clients_lists_them(sandbox: Sandbox, environ: dict[str, str]) -> None:
    """Without their tokens."""
    runtime = CallerRuntime.build(environ)
    token = runtime.clients.create("shop", [Scope.READ_ENTITLEMENTS]).token
    runtime.close()
    (listed,) = sandbox.invoke("manage_clients", environ)["clients"]
    assert (listed["client_id"], listed["name"], listed["scopes"]) == (token.client_id, "shop", ["entitlements:read"])


def test_sweep_retention_deletes_what_is_past_its_time(sandbox: Sandbox, environ: dict[str, str], rows: Rows) -> None:
    """R1."""
    rows.execute(EXPIRED)
    swept = sandbox.invoke("sweep_retention", environ)
    assert (swept["deleted"], swept["complete"]) == ({"idempotency_keys": 1}, True)
    assert rows.execute("SELECT FROM idempotency_keys").rowcount == 0


def test_migrate_database_makes_the_schema(sandbox: Sandbox, databases: Databases, environ: dict[str, str]) -> None:
    """S1: from nothing, with the files of its own build."""
    url = databases.empty()
    applied = sandbox.invoke("migrate_database", environ | {"DATABASE_URL": url})["applied"]
    schema = read_schema(MIGRATIONS, SQL)
    assert applied == [file.name for file in (*schema.migrations, *schema.functions)]
    with Client(url) as client:
        assert client.grant("p_456").status == 200
    databases.drop(url)


def _grant(environ: Mapping[str, str]) -> None:
    with Client(environ["DATABASE_URL"]) as client:
        assert client.grant("p_456").status == 200


def _publish(environ: Mapping[str, str]) -> None:
    _grant(environ)
    relay = RelayRuntime.build(environ)
    relay.run(budget())
    relay.close()


def _bridge(environ: Mapping[str, str]) -> None:
    _publish(environ)
    bridge = BridgeRuntime.build(environ)
    bridge.run(budget())
    bridge.close()


def _poison(environ: Mapping[str, str]) -> None:
    with Pipeline(environ) as pipeline:
        pipeline.publish(b"poison", event_headers(uuid.uuid4()))
        pipeline.run_bridge()
        pipeline.wait_for_advisories(1)


def _body(method: str, path: str, answer: Mapping[str, Any]) -> Any:
    """What a caller of the API would read, held against what was promised."""
    assert answer["statusCode"] == 200, answer
    assert_matches_contract(method, path, answer["statusCode"], answer["headers"], answer["body"])
    return json.loads(answer["body"])


def _rights(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.execute("SELECT status, version FROM entitlements")]


def _events(rows: Rows) -> list[tuple[Any, ...]]:
    select = "SELECT event_type, aggregate_version, status FROM outbox_events ORDER BY aggregate_version"
    return [tuple(row.values()) for row in rows.execute(select)]


def _notifications(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.execute("SELECT event_type, user_id, status FROM notifications")]
