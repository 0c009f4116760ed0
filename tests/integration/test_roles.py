"""A1, E6, G3: each role of the functions has exactly the privileges that its statements need."""

from __future__ import annotations

import re
import socket
import stat
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from functions.migrate_database.handler import handle
from grantwire.database import Database, DatabaseSettings
from grantwire.errors import InternalError
from grantwire.retention import RetentionSettings, Sweep
from grantwire.settings import load
from grantwire.wiring.tasks.migrate_database import MigrationRuntime
from infra.local.stack import database as local_database
from infra.local.stack.development_client import development_token
from tests.support.client import Client
from tests.support.concurrency import run_concurrently
from tests.support.dead_letters import budget
from tests.support.migrations import migrate
from tests.support.paths import SQL
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

Connection = psycopg.Connection[Any]

ALL = "SELECT INSERT UPDATE DELETE"
# For each table: its table privileges, and the columns of its column privileges.
PRIVILEGES = {
    "api_clients": (
        "",
        {
            "SELECT": "burst_limit client_id created_at created_by expires_at last_used_at name "
            "previous_hash previous_until rate_limit revoked_at scopes token_hash",
            "UPDATE": "last_used_at",
        },
    ),
    "change_feed_waiters": ("SELECT INSERT DELETE", {}),
    "client_buckets": ("SELECT INSERT", {"UPDATE": "filled_at tokens"}),
    "closed_dead_letters": ("SELECT", {}),
    "dead_letters": ("SELECT", {}),
    "distributed_locks": (ALL, {}),
    "entitlement_audit": (
        "",
        {
            "INSERT": "caller changed_at correlation_id detail expires_at operation operation_id outcome purchase_id "
            "source_address starts_at status stock_keeping_unit trace_id user_id version"
        },
    ),
    "entitlement_audit_default": ("", {"SELECT": "occurred_at"}),
    "entitlements": (
        "SELECT INSERT",
        {"UPDATE": "expires_at expiring_pending purchase_id start_pending starts_at status updated_at version"},
    ),
    "guarded_transactions": ("SELECT INSERT DELETE", {}),
    "idempotency_fences": ("USAGE", {}),
    "idempotency_keys": (
        "SELECT INSERT DELETE",
        {"UPDATE": "created_at expires_at request_hash response_body status_code"},
    ),
    "installation": ("", {"SELECT": "installation_id"}),
    "key_conflicts": (
        "SELECT DELETE",
        {"INSERT": "caller day key_hash operation_id route", "UPDATE": "conflicts last_at"},
    ),
    "notification_dlq": (ALL, {}),
    "notification_nats_dlq": (ALL, {}),
    "notifications": (ALL, {}),
    "operator_actions": (
        "",
        {"INSERT": "action action_id actor batch count dry_run kind dead_letter_ids reason selection source"},
    ),
    "operator_commands": (
        "SELECT INSERT DELETE",
        {
            "UPDATE": "attempt_count batches done finished_at last_error lease_until locked_at locked_by next_run_at "
            "position result selected skipped started_at status updated_at"
        },
    ),
    "outbox_confirmation": ("SELECT UPDATE", {}),
    "outbox_events": (
        "SELECT INSERT DELETE",
        {
            "UPDATE": "attempt_count discarded_at last_error lease_until locked_at locked_by next_retry_at "
            "published_at ready republication status stream_sequence"
        },
    ),
    "outbox_republications": (ALL, {}),
    "outbox_unconfirmed": (ALL, {}),
    "processed_events": ("SELECT INSERT DELETE", {"UPDATE": "processed_at"}),
    "processed_messages": (ALL, {}),
    "schema_definitions": ("", {"SELECT": "checksum name"}),
    "schema_migrations": ("", {"SELECT": "checksum name"}),
    "status_samples": ("SELECT INSERT DELETE", {"UPDATE": "sent"}),
    "stream_losses": (ALL, {}),
    "user_entitlements": ("SELECT INSERT DELETE", {"UPDATE": "changed_at expires_at starts_at status version"}),
    "user_entitlements_differences": ("SELECT", {}),
    "user_summaries": ("SELECT INSERT UPDATE", {}),
    "user_summaries_differences": ("SELECT", {}),
    "user_summaries_expected": ("SELECT", {}),
    "worker_heartbeats": ("SELECT INSERT UPDATE", {}),
}
CLIENTS_PRIVILEGES: dict[str, tuple[str, dict[str, str]]] = {
    "api_clients": (
        "SELECT",
        {
            "INSERT": "burst_limit client_id created_by expires_at name rate_limit scopes token_hash",
            "UPDATE": "burst_limit expires_at previous_hash previous_until rate_limit revoked_at rotated_at token_hash",
        },
    ),
    "client_buckets": ("SELECT INSERT", {"UPDATE": "filled_at tokens"}),
    "operator_actions": (
        "",
        {"INSERT": "action action_id actor batch client_id count dry_run kind reason selection source"},
    ),
}
OWNER_ONLY = {"audit_retention", "stream_losses_loss_id_seq"}
OWNER_ONLY_FUNCTIONS = {
    "api_clients_keep_revocation",
    "installation_renew",
    "is_schema_owner",
    "operator_actions_append_only",
    "outbox_events_failed_at",
}
SECURITY_DEFINER = {
    "change_feed_lag",
    "change_feed_page",
    "client_request_begin",
    "client_request_finish",
    "entitlement_at",
    "entitlement_audit_drop_oldest",
    "entitlement_audit_ensure_partitions",
    "entitlement_history",
    "genuine_events",
    "oldest_writing_transaction_of_all",
    "operator_actions_find",
    "trace_changes",
}
# The functions that both roles may execute.
SHARED_FUNCTIONS = {"client_expires_at", "client_tokens_take"}
CLIENTS_FUNCTIONS = {"client_request_begin", "client_request_finish", *SHARED_FUNCTIONS}

_RELATIONS = """
SELECT c.relname AS name,
       coalesce((SELECT array_agg(a.privilege_type) FROM aclexplode(c.relacl) a
                  WHERE a.grantee = %(role)s::regrole), '{}') AS privileges,
       coalesce((SELECT array_agg(a.privilege_type || ' ' || t.attname ORDER BY t.attname)
                   FROM pg_attribute t, aclexplode(t.attacl) a
                  WHERE t.attrelid = c.oid AND a.grantee = %(role)s::regrole), '{}') AS columns,
       EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 0) AS public
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
   AND c.relname !~ '^entitlement_audit_y'
"""

_FUNCTIONS = """
SELECT p.proname AS name, p.prosecdef AS security_definer, p.proconfig AS config,
       has_function_privilege(%(role)s, p.oid, 'EXECUTE') AS granted,
       p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0) AS public
  FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
"""

FORBIDDEN = [
    "CREATE TABLE mine (id int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql RETURN 1",
    "CREATE OR REPLACE FUNCTION rfc3339(p_time timestamptz) RETURNS text LANGUAGE sql STABLE RETURN 'never'",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE TRIGGER mine AFTER INSERT ON entitlements EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE INDEX ON entitlements (status)",
    "CREATE ROLE mine",
    "ALTER TABLE entitlements ADD note text",
    "ALTER TABLE entitlement_audit DETACH PARTITION entitlement_audit_default",
    "ALTER TABLE api_clients DROP CONSTRAINT api_clients_scopes",
    "ALTER FUNCTION entitlement_audit_drop_oldest OWNER TO CURRENT_USER",
    "ALTER ROLE grantwire_functions CREATEROLE",
    "DROP TABLE entitlements",
    "DROP TABLE entitlement_audit_default",
    "DROP FUNCTION outbox_promote_stuck",
    "DROP SCHEMA public CASCADE",
    "TRUNCATE entitlement_audit",
    "TRUNCATE entitlements",
    "TRUNCATE outbox_events",
    "TRUNCATE operator_actions",
    "DELETE FROM entitlement_audit",
    "DELETE FROM entitlement_audit_default",
    "UPDATE entitlement_audit SET caller = 'other'",
    "UPDATE entitlement_audit_default SET caller = 'other'",
    "SELECT * FROM entitlement_audit",
    "SELECT caller FROM entitlement_audit_default",
    "INSERT INTO entitlement_audit_default (operation_id) VALUES (gen_random_uuid())",
    "INSERT INTO entitlement_audit (operation_id, occurred_at) VALUES (gen_random_uuid(), '2001-01-01')",
    "DELETE FROM operator_actions",
    "UPDATE operator_actions SET actor = 'other'",
    "INSERT INTO operator_actions (action_id, occurred_at) VALUES (gen_random_uuid(), '2001-01-01')",
    "INSERT INTO operator_actions (action_id, client_id) VALUES (gen_random_uuid(), 'aaaaaaaaaaaa')",
    "SELECT * FROM operator_actions",
    "DELETE FROM entitlements",
    "UPDATE entitlements SET user_id = 'other'",
    "UPDATE outbox_events SET payload = '{}'",
    "UPDATE idempotency_keys SET caller = 'other'",
    "UPDATE user_entitlements SET user_id = 'other'",
    "DELETE FROM api_clients",
    "INSERT INTO api_clients (client_id, name, scopes, token_hash) VALUES ('a', 'mine', ARRAY['ops:read'], 'a')",
    "UPDATE api_clients SET scopes = ARRAY['ops:read']",
    "UPDATE api_clients SET client_id = 'aaaaaaaaaaaa'",
    "UPDATE api_clients SET token_hash = repeat('a', 64)",
    "UPDATE api_clients SET previous_hash = repeat('a', 64), previous_until = 'infinity'",
    "UPDATE api_clients SET expires_at = NULL",
    "UPDATE api_clients SET revoked_at = NULL",
    "SELECT rotated_at FROM api_clients",
    "SELECT * FROM api_clients",
    "SELECT * FROM audit_retention",
    "INSERT INTO audit_retention (keep_months) VALUES (1)",
    "SELECT * FROM schema_migrations",
    "DELETE FROM schema_migrations",
    "SELECT * FROM schema_definitions",
    "DELETE FROM schema_definitions",
    "SELECT is_schema_owner()",
    "SELECT * FROM pg_authid",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT lo_import('/etc/hostname')",
    "COPY entitlements TO PROGRAM 'cat'",
    "COPY entitlements TO '/dev/null'",
    "SET session_replication_role = replica",
    "LOCK TABLE entitlement_audit IN ACCESS EXCLUSIVE MODE",
    "LOCK TABLE entitlement_audit IN SHARE MODE",
    "GRANT SELECT ON audit_retention TO grantwire_functions",
    "SET ROLE grantwire_clients",
]

# Statements that the role of manage_clients may not execute.
FORBIDDEN_FOR_CLIENTS = [
    "CREATE TABLE mine (id int)",
    "CREATE ROLE mine",
    "DELETE FROM api_clients",
    "TRUNCATE api_clients",
    "UPDATE api_clients SET scopes = ARRAY['ops:read']",
    "UPDATE api_clients SET name = 'other'",
    "UPDATE api_clients SET last_used_at = NULL",
    "UPDATE api_clients SET created_at = '2001-01-01'",
    "UPDATE api_clients SET created_by = NULL",
    "ALTER TABLE api_clients DISABLE TRIGGER api_clients_keep_revocation",
    "SELECT * FROM entitlements",
    "INSERT INTO entitlements VALUES ('u', 's', 'ACTIVE', 1, now())",
    "SELECT * FROM entitlement_audit",
    "INSERT INTO entitlement_audit (operation_id) VALUES (gen_random_uuid())",
    "SELECT * FROM idempotency_keys",
    "SELECT * FROM outbox_events",
    "SELECT * FROM notifications",
    "SELECT * FROM dead_letters",
    "SELECT * FROM user_entitlements",
    "SELECT * FROM schema_migrations",
    "SELECT change_entitlement('r', 'k', 'h', '1h', 0, '0', '0', NULL)",
    "SELECT entitlement_audit_drop_oldest(1)",
    "SELECT * FROM operator_actions",
    "UPDATE operator_actions SET actor = 'other'",
    "DELETE FROM operator_actions",
    "TRUNCATE operator_actions",
    "INSERT INTO operator_actions (action_id, occurred_at) VALUES (gen_random_uuid(), '2001-01-01')",
    "INSERT INTO operator_actions (action_id, dead_letter_ids) VALUES (gen_random_uuid(), '{}')",
    "SET session_replication_role = replica",
    "SET ROLE grantwire_functions",
]


@pytest.fixture
def functions(database_url: str) -> Iterator[Connection]:
    """A connection with the role of the functions."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_integration_tests_use_the_role_of_the_functions(functions: Connection) -> None:
    """So every integration test also proves that the role has the privileges that the function needs."""
    (row,) = functions.execute("""
        SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls,
               ARRAY(SELECT roleid::regrole::text FROM pg_auth_members WHERE member = r.oid)
          FROM pg_roles r WHERE rolname = session_user""").fetchall()
    assert row == (False, ["grantwire_functions"])
    (group,) = functions.execute("""
        SELECT rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb,
               EXISTS (SELECT FROM pg_auth_members WHERE member = r.oid)
          FROM pg_roles r WHERE rolname = 'grantwire_functions'""").fetchall()
    assert group == (False, False)


@pytest.mark.parametrize(
    ("role", "privileges"), [("grantwire_functions", PRIVILEGES), ("grantwire_clients", CLIENTS_PRIVILEGES)]
)
def test_role_has_exactly_the_listed_table_privileges(
    rows: Rows, role: str, privileges: dict[str, tuple[str, dict[str, str]]]
) -> None:
    """G3: a new table, view or sequence must be listed here, or be used by its owner only."""
    relations = {row["name"]: row for row in rows.execute(_RELATIONS, {"role": role})}
    nothing: tuple[list[str], list[str]] = ([], [])
    expected = dict.fromkeys(PRIVILEGES.keys() | OWNER_ONLY, nothing) | {
        name: (
            sorted(table.split()),
            sorted(f"{privilege} {column}" for privilege in columns for column in columns[privilege].split()),
        )
        for name, (table, columns) in privileges.items()
    }
    assert {name: (sorted(row["privileges"]), sorted(row["columns"])) for name, row in relations.items()} == expected
    assert not [name for name, row in relations.items() if row["public"]]


def test_role_may_execute_all_sql_functions_except_those_of_the_owner(rows: Rows) -> None:
    """PUBLIC may execute none, the role of clients its own. SECURITY DEFINER functions have a fixed search_path."""
    sql_functions = {row["name"]: row for row in rows.execute(_FUNCTIONS, {"role": "grantwire_functions"})}
    assert {name for name, row in sql_functions.items() if not row["granted"]} == (
        OWNER_ONLY_FUNCTIONS | CLIENTS_FUNCTIONS - SHARED_FUNCTIONS
    )
    assert {name for name, row in sql_functions.items() if row["public"]} == set()
    assert {name for name, row in sql_functions.items() if row["security_definer"]} == SECURITY_DEFINER
    assert all("search_path=public, pg_temp" in sql_functions[name]["config"] for name in SECURITY_DEFINER)
    granted = {row["name"] for row in rows.execute(_FUNCTIONS, {"role": "grantwire_clients"}) if row["granted"]}
    assert granted == CLIENTS_FUNCTIONS


def test_audit_partitions_have_no_privileges_of_their_own(rows: Rows) -> None:
    """A partition is only accessible through its table, also if the functions have created it."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(4)")
    granted = rows.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^entitlement_audit_y' AND relacl IS NOT NULL"
    ).fetchall()
    assert granted == []


def test_role_may_not_execute_other_statements(functions: Connection, client: Client) -> None:
    """G3: no DDL, no access to tables of the owner, no change of audit rows, and no change of clients."""
    assert client.grant("k").status == 200
    assert _allowed(functions, FORBIDDEN) == []


def test_role_of_manage_clients_may_not_execute_other_statements(clients_url: str, client: Client) -> None:
    """G3: it sees no entitlement, event or audit row, and cannot delete or promote a client."""
    assert client.grant("k").status == 200
    with psycopg.connect(clients_url, autocommit=True) as clients:
        assert _allowed(clients, FORBIDDEN_FOR_CLIENTS) == []


def _allowed(connection: Connection, statements: list[str]) -> list[str]:
    """Return the statements that the role may execute. Every other error than missing privileges is raised."""
    allowed = []
    for statement in statements:
        try:
            with connection.transaction(force_rollback=True):
                connection.execute(statement.encode())
            allowed.append(statement)
        except psycopg.errors.InsufficientPrivilege:
            pass
    return allowed


_INSERT_REVOKED = """
INSERT INTO api_clients (client_id, name, scopes, token_hash, revoked_at)
VALUES ('aaaaaaaaaaaa', 'shop', ARRAY['ops:read'], repeat('a', 64), '2026-01-01')
"""


@pytest.mark.parametrize(
    "change",
    ["revoked_at = NULL", "revoked_at = now()", "revoked_at = 'infinity'", "expires_at = NULL, revoked_at = NULL"],
)
def test_revocation_is_final_for_every_role(rows: Rows, clients_url: str, change: str) -> None:
    """G3: neither the role of manage_clients nor the owner can change or clear revoked_at."""
    rows.execute(_INSERT_REVOKED)
    statement = f"UPDATE api_clients SET {change}".encode()  # noqa: S608
    with psycopg.connect(clients_url, autocommit=True) as clients:
        for connection in (clients, rows):
            with pytest.raises(psycopg.errors.RestrictViolation, match="a revocation cannot be changed"):
                connection.execute(statement)
        clients.execute("UPDATE api_clients SET revoked_at = coalesce(revoked_at, now()), rotated_at = now()")
    rows.execute("SET session_replication_role = replica")
    with pytest.raises(psycopg.errors.RestrictViolation):
        rows.execute(statement)
    (row,) = rows.execute("SELECT revoked_at FROM api_clients").fetchall()
    assert row["revoked_at"] == datetime(2026, 1, 1, tzinfo=UTC)


def test_administrative_actions_are_append_only_for_every_role(rows: Rows) -> None:
    """G4: the owner's own statements are refused, too, unless the owner disables the trigger."""
    rows.execute("""
        INSERT INTO operator_actions (action_id, batch, actor, reason, source, action, kind, selection, dry_run,
                                      count)
        VALUES (gen_random_uuid(), 0, 'ann', 'damaged', 'a test', 'rebuild', 'read_model', '{}', false, 0)""")
    for replication_role in ("origin", "replica"):
        rows.execute(sql.SQL("SET session_replication_role = {}").format(sql.SQL(replication_role)))
        for statement in (
            "UPDATE operator_actions SET actor = 'bob'",
            "DELETE FROM operator_actions",
            "TRUNCATE operator_actions",
        ):
            with pytest.raises(psycopg.errors.RestrictViolation, match="operator_actions is append-only"):
                rows.execute(statement.encode())
    (row,) = rows.execute("SELECT actor, source FROM operator_actions").fetchall()
    assert row == {"actor": "ann", "source": "a test"}


_ACTION = """
INSERT INTO operator_actions (action_id, batch, actor, reason, source, action, kind, selection, dry_run, count)
VALUES (gen_random_uuid(), 0, %(actor)s, %(reason)s, %(source)s, %(action)s, %(kind)s, '{}', false, %(count)s)
"""
_VALID_ACTION = {"actor": "a", "reason": "r", "source": "s", "action": "rebuild", "kind": "read_model", "count": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"actor": ""},
        {"reason": ""},
        {"source": ""},
        {"actor": "x" * 501},
        {"reason": "x" * 501},
        {"source": "x" * 501},
        {"action": "redrive"},
        {"kind": "other"},
        {"kind": "client", "action": "create"},  # without a client
        {"kind": "outbox", "action": "redrive"},  # without dead letters
        {"count": -1},
    ],
)
def test_incomplete_administrative_action_is_refused(functions: Connection, change: dict[str, Any]) -> None:
    """G4: a row has an actor, a reason and a source, and an action that fits its kind."""
    functions.execute(_ACTION, _VALID_ACTION)
    with pytest.raises(psycopg.errors.CheckViolation):
        functions.execute(_ACTION, _VALID_ACTION | change)


@pytest.mark.parametrize(
    ("caller", "detail", "correlation_id", "constraint"),
    [
        ("c" * 129, "{}", None, "entitlement_audit_caller_length"),
        ("", "{}", None, "entitlement_audit_caller_length"),
        ("c", '{"reason": "%s"}' % ("x" * 8192), None, "entitlement_audit_detail_length"),
        ("c", "{}", "r" * 129, "entitlement_audit_correlation_id_length"),
        ("c", "{}", "", "entitlement_audit_correlation_id_length"),
    ],
)
def test_audit_row_has_a_maximum_size(
    functions: Connection, caller: str, detail: str, correlation_id: str | None, constraint: str
) -> None:
    """G3: a stolen role cannot fill the disk with one row. The limits apply to every partition."""
    insert = """
        INSERT INTO entitlement_audit
               (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail, correlation_id)
        VALUES (gen_random_uuid(), %s, 'GRANT', 'IDEMPOTENCY_KEY_CONFLICT', 'u', 's', %s, %s)"""
    functions.execute(insert, ("c" * 128, "{}", "r" * 128))
    with pytest.raises(psycopg.errors.CheckViolation, match=constraint):
        functions.execute(insert, (caller, detail, correlation_id))


@pytest.mark.parametrize("caller", ["c" * 129, ""])
def test_caller_of_an_idempotency_key_has_a_maximum_length(functions: Connection, caller: str) -> None:
    """G3: it is a part of the primary key, which a stolen role could otherwise fill with long texts."""
    insert = """
        INSERT INTO idempotency_keys (caller, route, idempotency_key, request_hash, status_code, response_body,
                                      created_at, expires_at)
        VALUES (%s, 'r', 'k', 'v1:0', 200, '{}', now(), now() + interval '1 day')"""
    functions.execute(insert, ("c" * 128,))
    with pytest.raises(psycopg.errors.CheckViolation, match="idempotency_keys_caller_length"):
        functions.execute(insert, (caller,))


def test_size_limits_apply_to_all_audit_partitions_and_are_validated(rows: Rows) -> None:
    """G3: also to DEFAULT and to a partition that the functions create later."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(4)")
    limits = rows.execute("""
        SELECT conrelid::regclass::text AS name, array_agg(conname::text ORDER BY conname) AS limits,
               bool_and(convalidated) AS validated
          FROM pg_constraint WHERE conname ~ '_(caller|correlation_id|detail)_length$' GROUP BY conrelid""").fetchall()
    assert all(row["validated"] for row in limits)
    audit = [f"entitlement_audit_{column}_length" for column in ("caller", "correlation_id", "detail")]
    expected = dict.fromkeys(["entitlement_audit", "entitlement_audit_default", *_partitions(rows)], audit)
    expected["idempotency_keys"] = ["idempotency_keys_caller_length"]
    assert {row["name"]: row["limits"] for row in limits} == expected


def test_role_cannot_become_the_owner(functions: Connection, rows: Rows) -> None:
    """Neither with SET ROLE nor by membership. It cannot change server settings either."""
    (row,) = rows.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'entitlements'").fetchall()
    for statement in (
        "SET ROLE {}",
        "GRANT {} TO CURRENT_USER",
        "SET SESSION AUTHORIZATION {}",
        "ALTER SYSTEM RESET ALL",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            functions.execute(sql.SQL(statement).format(sql.Identifier(row["tableowner"])))


def test_audit_row_cannot_be_backdated(functions: Connection, rows: Rows) -> None:
    """A1: occurred_at of an inserted row is always the time of the database."""
    before = datetime.now(UTC) - timedelta(minutes=5)
    functions.execute("""
        INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        VALUES (gen_random_uuid(), 'unknown', 'GRANT', 'IDEMPOTENCY_KEY_CONFLICT', 'u', 's', '{}')""")
    (row,) = rows.execute("SELECT occurred_at FROM entitlement_audit").fetchall()
    assert row["occurred_at"] > before


def test_role_cannot_drop_partitions_without_permission_of_the_owner(functions: Connection, rows: Rows) -> None:
    """A1: for any number of months and any time that the role passes."""
    _create_partitions(rows, 1, 13, 30)
    before = _partitions(rows)
    for months, now in ((1, None), (1, "2100-01-01"), (1200, None)):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="does not allow dropping audit partitions"):
            _drop_oldest(functions, months, now)
    assert _partitions(rows) == before
    rows.execute("INSERT INTO audit_retention (keep_months) VALUES (24)")
    assert _drop_oldest(functions, 1, "2100-01-01") == _partition(30)
    assert _drop_oldest(functions, 1, "2100-01-01") is None
    assert _drop_oldest(functions, 1, None) is None
    assert _partitions(rows) == [name for name in before if name != _partition(30)]


def test_role_can_keep_more_months_than_required(functions: Connection, rows: Rows) -> None:
    """A1: the larger of both numbers applies."""
    _create_partitions(rows, 13, 30)
    rows.execute("INSERT INTO audit_retention (keep_months) VALUES (6)")
    assert _drop_oldest(functions, 24, None) == _partition(30)
    assert _drop_oldest(functions, 24, None) is None
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        _drop_oldest(functions, 0, None)


@pytest.mark.parametrize(("ahead", "now"), [(500, None), (0, "2100-01-01"), (0, "1900-01-01"), (13, None)])
def test_role_cannot_create_partitions_far_from_now(
    functions: Connection, rows: Rows, ahead: int, now: str | None
) -> None:
    """A1: otherwise it could fill the catalogue and stop the service."""
    before = _partitions(rows)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="can be created only by the schema owner"):
        _ensure_partitions(functions, ahead, now)
    assert _partitions(rows) == before


def test_role_can_create_a_partition_for_rows_in_default(functions: Connection, rows: Rows) -> None:
    """A1: for months of any time, as the sweep does."""
    rows.execute("""
        INSERT INTO entitlement_audit
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        VALUES (gen_random_uuid(), '2001-02-03', 'c', 'GRANT', 'IDEMPOTENCY_KEY_CONFLICT', 'u', 's', '{}')""")
    assert _ensure_partitions(functions, 0, "2001-02-15") == ["entitlement_audit_y2001m02"]
    assert _ensure_partitions(functions, 12, None)[-1] == _partition(-12)
    (row,) = rows.execute("SELECT tableoid::regclass::text AS name FROM entitlement_audit").fetchall()
    assert row["name"] == "entitlement_audit_y2001m02"


def test_security_definer_functions_ignore_the_search_path_of_the_caller(functions: Connection, rows: Rows) -> None:
    """Temporary tables with the same names, first in the search path, change nothing."""
    _create_partitions(rows, 30)
    before = _partitions(rows)
    functions.execute("SET search_path = pg_temp, public")
    functions.execute("CREATE TEMPORARY TABLE audit_retention (single boolean, keep_months integer)")
    functions.execute("INSERT INTO audit_retention VALUES (true, 1)")
    functions.execute("CREATE TEMPORARY TABLE entitlement_audit (occurred_at timestamptz)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="does not allow dropping audit partitions"):
        functions.execute("SELECT public.entitlement_audit_drop_oldest(1)")
    functions.execute("SELECT public.entitlement_audit_ensure_partitions(4)")
    assert _partitions(rows) == sorted({*before, _partition(-4)})


def test_sweep_works_with_the_role_of_the_functions(database_url: str, rows: Rows) -> None:
    """A1, R1: it creates and drops partitions and applies every policy. It fails if dropping is not allowed."""
    _create_partitions(rows, 30)
    with _sweep(database_url, ENTITLEMENT_AUDIT_RETENTION_MONTHS="12") as sweep:
        with pytest.raises(InternalError, match="ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database"):
            run_worker(sweep, budget())
        rows.execute("INSERT INTO audit_retention (keep_months) VALUES (12)")
        rows.execute(f"DROP TABLE {_partition(-3)}")
        result = run_worker(sweep, budget())
    assert (result["months_made"], result["months_dropped"]) == ([_partition(-3)], [_partition(30)])
    assert result["complete"]


def test_migration_stores_the_allowed_audit_retention(owner_url: str, rows: Rows) -> None:
    """A1: also with concurrent migrations. Without the setting, no partition may be dropped."""
    settings = load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url})

    def run(months: int | None) -> list[dict[str, Any]]:
        assert handle({}, MigrationRuntime(settings, months), "") == {"applied": []}
        return rows.execute("SELECT keep_months FROM audit_retention").fetchall()

    assert run(24) == [{"keep_months": 24}]
    assert run(36) == [{"keep_months": 36}]
    assert run(None) == []
    run_concurrently(4, lambda _: handle({}, MigrationRuntime(settings, 12), ""))
    assert rows.execute("SELECT keep_months FROM audit_retention").fetchall() == [{"keep_months": 12}]


def test_concurrent_migrations_create_the_role_once(databases: Databases) -> None:
    """Databases of one cluster share their roles."""
    name = f"grantwire_race_{uuid.uuid4().hex[:8]}"

    def create(_: int) -> None:
        with psycopg.connect(databases.cluster.url(), autocommit=True) as connection:
            connection.execute(_create_role(name))

    try:
        run_concurrently(6, create)
        with psycopg.connect(databases.cluster.url()) as connection:
            roles = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", (name,)).fetchall()
        assert roles == [(False,)]
    finally:
        _administer(databases, sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_missing_role_error_has_the_statement_to_run(databases: Databases) -> None:
    """An owner without CREATEROLE gets the statement for an administrator, and nothing is applied."""
    with _unprivileged_owner(databases) as url, psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="role grantwire_absent does not exist"
        ) as caught:
            connection.execute(_create_role("grantwire_absent"))
        assert "CREATE ROLE grantwire_absent NOLOGIN;" in (caught.value.diag.message_hint or "")


def test_owner_without_attributes_can_migrate_if_the_role_exists(databases: Databases) -> None:
    """The functions then work in this database."""
    with _unprivileged_owner(databases) as url:
        assert migrate(url)
        with Client(databases.url_for_functions(url)) as client:
            assert client.grant("k").status == 200
            assert client.revoke("k2").status == 200
        with psycopg.connect(url) as owner:
            assert owner.execute("SELECT count(*) FROM entitlement_audit").fetchall() == [(2,)]


def test_local_stack_has_all_roles(server: PostgresServer, tmp_path: Path) -> None:
    """G3: `make up` gives superuser, owner, functions and manage_clients different passwords, in private files."""
    local_database.create(server)
    local_database.migrate(server, tmp_path / "migrations")
    local_database.create(server)  # as at every start
    owner = local_database.owner_url(server)
    url = local_database.functions_url(owner, server)
    clients_url = local_database.clients_url(owner, server)
    assert len({server.password, *(urlsplit(address).password for address in (owner, url, clients_url))}) == 4
    files = list(server.state.glob("password*"))
    assert [path.name for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    assert len({path.read_text() for path in files}) == len(files) == 4
    with Client(url) as client:
        assert client.grant("k").status == 200
    with psycopg.connect(url, autocommit=True) as functions:
        for statement in ("CREATE TEMPORARY TABLE mine (id int)", "DELETE FROM entitlement_audit", "CREATE ROLE mine"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                functions.execute(statement.encode())
        assert len(_ensure_partitions(functions, 5, None)) == 2  # the owner is no superuser either
    development_token(clients_url, tmp_path / "token")
    with psycopg.connect(owner) as connection:
        assert connection.execute("SELECT count(*) FROM entitlement_audit").fetchall() == [(1,)]
        actions = connection.execute("SELECT actor, action, source FROM operator_actions").fetchall()
    assert actions == [("make up", "create", f"command line of {socket.gethostname()}, make up")]


def test_owner_of_the_local_stack_sees_the_transactions_of_the_functions(server: PostgresServer) -> None:
    """T4: doctor runs as the owner, and reports transactions that are open for long."""
    local_database.create(server)
    owner = local_database.owner_url(server)
    with psycopg.connect(local_database.functions_url(owner, server)) as functions, psycopg.connect(owner) as doctor:
        functions.execute("SELECT 1")
        query = "SELECT state FROM pg_stat_activity WHERE pid = %s AND xact_start IS NOT NULL"
        assert doctor.execute(query, [functions.info.backend_pid]).fetchall() == [("idle in transaction",)]


def test_roles_of_the_local_stack_connect_to_no_other_database(server: PostgresServer) -> None:
    """G3: neither to the maintenance databases of the cluster nor to a database that existed before."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE existing")
    try:
        local_database.create(server)
        owner = local_database.owner_url(server)
        for url in (local_database.functions_url(owner, server), local_database.clients_url(owner, server)):
            psycopg.connect(url).close()
            for name in ("postgres", "template1", "existing"):
                with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                    psycopg.connect(urlunsplit(urlsplit(url)._replace(path=f"/{name}")))
    finally:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("DROP DATABASE existing")


def _create_role(name: str) -> bytes:
    """Return the statement of the baseline that creates the roles, for one role of another name."""
    text = (SQL / "roles.sql").read_text()
    statement = re.search(r"^DO \$\$.*?^\$\$;", text, re.MULTILINE | re.DOTALL)
    assert statement is not None
    roles = "'grantwire_functions', 'grantwire_clients'"
    assert statement[0].count("grantwire_") == roles.count("grantwire_") == 2
    return statement[0].replace(roles, f"'{name}'").encode()


@contextmanager
def _unprivileged_owner(databases: Databases) -> Iterator[str]:
    """Yield the URL of an empty database whose owner is a role without attributes."""
    name = f"grantwire_owner_{uuid.uuid4().hex[:8]}"
    url = databases.empty()
    parts = urlsplit(url)
    role, database = sql.Identifier(name), sql.Identifier(parts.path.lstrip("/"))
    _administer(databases, sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(name)))
    _administer(databases, sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, role))
    try:
        yield urlunsplit(parts._replace(netloc=f"{name}:{name}@{parts.netloc.rpartition('@')[2]}"))
    finally:
        _administer(databases, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
        _administer(databases, sql.SQL("DROP ROLE {}").format(role))


def _administer(databases: Databases, statement: sql.Composed) -> None:
    with psycopg.connect(databases.cluster.url(), autocommit=True) as connection:
        connection.execute(statement)


@contextmanager
def _sweep(url: str, **settings: str) -> Iterator[Sweep]:
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url}))
    try:
        yield Sweep(database, load(RetentionSettings, settings))
    finally:
        database.close()


def _partition(months_ago: int) -> str:
    now = datetime.now(UTC)
    year, month = divmod(now.year * 12 + now.month - 1 - months_ago, 12)
    return f"entitlement_audit_y{year:04}m{month + 1:02}"


def _create_partitions(rows: Rows, *months_ago: int) -> None:
    for number in months_ago:
        day = f"{_partition(number)[-7:-3]}-{_partition(number)[-2:]}-15"
        rows.execute("SELECT entitlement_audit_ensure_partitions(0, %s::timestamptz)", (f"{day} 12:00+00",))


def _partitions(rows: Rows) -> list[str]:
    partitions = rows.execute(
        "SELECT relname AS name FROM pg_class WHERE relname ~ '^entitlement_audit_y....m..$' ORDER BY 1"
    )
    return [row["name"] for row in partitions]


def _drop_oldest(connection: Connection, months: int, now: str | None) -> Any:
    statement = "SELECT entitlement_audit_drop_oldest(%s, coalesce(%s::timestamptz, now()))"
    ((name,),) = connection.execute(statement, (months, now)).fetchall()
    return name


def _ensure_partitions(connection: Connection, ahead: int, now: str | None) -> list[Any]:
    statement = "SELECT entitlement_audit_ensure_partitions(%s, coalesce(%s::timestamptz, now()))"
    return [name for (name,) in connection.execute(statement, (ahead, now)).fetchall()]
