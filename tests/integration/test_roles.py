"""The functions' role may do what their statements need and nothing else; the schema is its owner's (A1, E6)."""

from __future__ import annotations

import re
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
from grantwire.runtime.migration import MigrationRuntime
from grantwire.settings import load
from infra.local.stack import database as local_database
from tests.support.client import Client
from tests.support.concurrency import at_once
from tests.support.dead_letters import budget
from tests.support.migrations import migrate
from tests.support.paths import MIGRATIONS
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

Connection = psycopg.Connection[Any]

ALL = "SELECT INSERT UPDATE DELETE"
# Table rights, then the columns of those that hold for some columns only.
RIGHTS = {
    "api_clients": (
        "SELECT INSERT",
        {
            "UPDATE": "expires_at last_used_at previous_hash previous_until revoked_at rotated_at token_hash",
        },
    ),
    "dead_letters": ("SELECT", {}),
    "distributed_locks": (ALL, {}),
    "entitlement_audit": (
        "",
        {"INSERT": "caller detail operation operation_id outcome stock_keeping_unit trace_id user_id"},
    ),
    "entitlement_audit_default": ("", {"SELECT": "occurred_at"}),
    "entitlements": ("SELECT INSERT", {"UPDATE": "status updated_at version"}),
    "idempotency_keys": (
        "SELECT INSERT DELETE",
        {"UPDATE": "created_at expires_at request_hash response_body status_code"},
    ),
    "notification_dlq": (ALL, {}),
    "notification_nats_dlq": (ALL, {}),
    "notifications": (ALL, {}),
    "operator_actions": (
        "",
        {"INSERT": "action action_id actor batch count dry_run kind dead_letter_ids reason selection"},
    ),
    "outbox_events": (
        "SELECT INSERT DELETE",
        {
            "UPDATE": "attempt_count discarded_at last_error lease_until locked_at locked_by next_retry_at "
            "published_at ready status"
        },
    ),
    "processed_events": ("SELECT INSERT DELETE", {"UPDATE": "processed_at"}),
    "processed_messages": (ALL, {}),
    "user_entitlements": ("SELECT INSERT DELETE", {"UPDATE": "changed_at status version"}),
    "user_entitlements_differences": ("SELECT", {}),
}
OWNER_ONLY = {"audit_retention", "schema_functions", "schema_migrations"}
OWNER_ONLY_FUNCTIONS = {"is_schema_owner"}
LENT = {"entitlement_audit_drop_oldest", "entitlement_audit_ensure_partitions"}

_RELATIONS = """
SELECT c.relname AS name,
       coalesce((SELECT array_agg(a.privilege_type) FROM aclexplode(c.relacl) a
                  WHERE a.grantee = 'grantwire_functions'::regrole), '{}') AS rights,
       coalesce((SELECT array_agg(a.privilege_type || ' ' || t.attname ORDER BY t.attname)
                   FROM pg_attribute t, aclexplode(t.attacl) a
                  WHERE t.attrelid = c.oid AND a.grantee = 'grantwire_functions'::regrole), '{}') AS columns,
       EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 0) AS public
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
   AND c.relname !~ '^entitlement_audit_y'
"""

_FUNCTIONS = """
SELECT p.proname AS name, p.prosecdef AS lent, p.proconfig AS config,
       has_function_privilege('grantwire_functions', p.oid, 'EXECUTE') AS granted,
       p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0) AS public
  FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
"""

REFUSED = [
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
    "UPDATE entitlement_audit SET caller = 'somebody else'",
    "UPDATE entitlement_audit_default SET caller = 'somebody else'",
    "SELECT * FROM entitlement_audit",
    "SELECT caller FROM entitlement_audit_default",
    "INSERT INTO entitlement_audit_default (operation_id) VALUES (gen_random_uuid())",
    "INSERT INTO entitlement_audit (operation_id, occurred_at) VALUES (gen_random_uuid(), '2001-01-01')",
    "DELETE FROM operator_actions",
    "UPDATE operator_actions SET actor = 'somebody else'",
    "INSERT INTO operator_actions (action_id, occurred_at) VALUES (gen_random_uuid(), '2001-01-01')",
    "DELETE FROM entitlements",
    "UPDATE entitlements SET user_id = 'somebody else'",
    "UPDATE outbox_events SET payload = '{}'",
    "UPDATE idempotency_keys SET caller = 'somebody else'",
    "UPDATE user_entitlements SET user_id = 'somebody else'",
    "DELETE FROM api_clients",
    "UPDATE api_clients SET scopes = ARRAY['ops']",
    "UPDATE api_clients SET client_id = 'aaaaaaaaaaaa'",
    "SELECT * FROM audit_retention",
    "INSERT INTO audit_retention (keep_months) VALUES (1)",
    "SELECT * FROM schema_migrations",
    "DELETE FROM schema_migrations",
    "SELECT * FROM schema_functions",
    "DELETE FROM schema_functions",
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
]


@pytest.fixture
def functions(database_url: str) -> Iterator[Connection]:
    """A connection of the functions' role."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_tests_run_as_the_functions_do(functions: Connection) -> None:
    """What a handler needs in any integration test, it was granted: the role has no other rights."""
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


def test_every_table_is_granted_column_by_column_or_is_the_owner_s(rows: Rows) -> None:
    """A new table, view or sequence is granted by its migration and stands here, or is the owner's alone."""
    found = {row["name"]: row for row in rows.execute(_RELATIONS)}
    expected = {
        name: (sorted(rights.split()), sorted(f"{right} {one}" for right in some for one in some[right].split()))
        for name, (rights, some) in RIGHTS.items()
    } | {name: ([], []) for name in OWNER_ONLY}
    assert {name: (sorted(row["rights"]), sorted(row["columns"])) for name, row in found.items()} == expected
    assert not [name for name, row in found.items() if row["public"]]


def test_every_sql_function_is_granted_or_is_the_owner_s(rows: Rows) -> None:
    """PUBLIC executes nothing, and those that lend the owner's rights find no tables but this schema's."""
    found = {row["name"]: row for row in rows.execute(_FUNCTIONS)}
    assert {name for name, row in found.items() if not row["granted"]} == OWNER_ONLY_FUNCTIONS
    assert {name for name, row in found.items() if row["public"]} == set()
    assert {name for name, row in found.items() if row["lent"]} == LENT
    assert all("search_path=public, pg_temp" in found[name]["config"] for name in LENT)


def test_months_of_the_audit_have_no_rights_of_their_own(rows: Rows) -> None:
    """A partition is reached through its table or not at all, also one that the functions made."""
    rows.execute("SELECT entitlement_audit_ensure_partitions(4)")
    granted = rows.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^entitlement_audit_y' AND relacl IS NOT NULL"
    ).fetchall()
    assert granted == []


def test_the_functions_role_is_refused_everything_else(functions: Connection, client: Client) -> None:
    """No DDL, nothing of the owner's, no rewriting of what happened."""
    assert client.grant("k").status == 200
    allowed = []
    for statement in REFUSED:
        try:
            with functions.transaction(force_rollback=True):
                functions.execute(statement.encode())
            allowed.append(statement)
        except psycopg.errors.InsufficientPrivilege:
            pass
    assert allowed == []


def test_the_functions_role_cannot_become_the_owner(functions: Connection, rows: Rows) -> None:
    """Neither by SET ROLE nor by membership; and the server is not its to set."""
    (row,) = rows.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'entitlements'").fetchall()
    for statement in (
        "SET ROLE {}",
        "GRANT {} TO CURRENT_USER",
        "SET SESSION AUTHORIZATION {}",
        "ALTER SYSTEM RESET ALL",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            functions.execute(sql.SQL(statement).format(sql.Identifier(row["tableowner"])))


def test_a_forged_audit_row_has_its_true_time(functions: Connection, rows: Rows) -> None:
    """A1: what can be added by hand cannot be dated back."""
    before = datetime.now(UTC) - timedelta(minutes=5)
    functions.execute("""
        INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        VALUES (gen_random_uuid(), 'nobody', 'GRANT', 'APPLIED', 'u', 's', '{}')""")
    (row,) = rows.execute("SELECT occurred_at FROM entitlement_audit").fetchall()
    assert row["occurred_at"] > before


def test_no_month_is_dropped_that_the_owner_has_not_allowed(functions: Connection, rows: Rows) -> None:
    """A1: whatever the role asks for, and whatever time it claims."""
    _make_months(rows, 1, 13, 30)
    before = _months(rows)
    for months, now in ((1, None), (1, "2100-01-01"), (1200, None)):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the owner lets nobody drop months"):
            _drop(functions, months, now)
    assert _months(rows) == before
    rows.execute("INSERT INTO audit_retention (keep_months) VALUES (24)")
    assert _drop(functions, 1, "2100-01-01") == _month(30)
    assert _drop(functions, 1, "2100-01-01") is None
    assert _drop(functions, 1, None) is None
    assert _months(rows) == [name for name in before if name != _month(30)]


def test_the_role_may_keep_more_than_the_owner_asks_for(functions: Connection, rows: Rows) -> None:
    """A1: the setting of the sweep counts if it is the more careful one."""
    _make_months(rows, 13, 30)
    rows.execute("INSERT INTO audit_retention (keep_months) VALUES (6)")
    assert _drop(functions, 24, None) == _month(30)
    assert _drop(functions, 24, None) is None
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        _drop(functions, 0, None)


@pytest.mark.parametrize(("ahead", "now"), [(500, None), (0, "2100-01-01"), (0, "1900-01-01"), (13, None)])
def test_the_role_makes_no_months_that_nobody_needs(
    functions: Connection, rows: Rows, ahead: int, now: str | None
) -> None:
    """A1: a catalogue full of partitions would stop the service as surely as no partition."""
    before = _months(rows)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not one to make a partition"):
        _ensure(functions, ahead, now)
    assert _months(rows) == before


def test_the_role_makes_a_month_for_rows_that_wait_in_default(functions: Connection, rows: Rows) -> None:
    """A1: as the sweep does, for months of any time."""
    rows.execute("""
        INSERT INTO entitlement_audit
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        VALUES (gen_random_uuid(), '2001-02-03', 'c', 'GRANT', 'APPLIED', 'u', 's', '{}')""")
    assert _ensure(functions, 0, "2001-02-15") == ["entitlement_audit_y2001m02"]
    assert _ensure(functions, 12, None)[-1] == _month(-12)
    (row,) = rows.execute("SELECT tableoid::regclass::text AS name FROM entitlement_audit").fetchall()
    assert row["name"] == "entitlement_audit_y2001m02"


def test_lent_rights_do_not_follow_the_borrower_s_search_path(functions: Connection, rows: Rows) -> None:
    """Temporary tables of the same names, and a search path that puts them first, change nothing."""
    _make_months(rows, 30)
    before = _months(rows)
    functions.execute("SET search_path = pg_temp, public")
    functions.execute("CREATE TEMPORARY TABLE audit_retention (single boolean, keep_months integer)")
    functions.execute("INSERT INTO audit_retention VALUES (true, 1)")
    functions.execute("CREATE TEMPORARY TABLE entitlement_audit (occurred_at timestamptz)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the owner lets nobody drop months"):
        functions.execute("SELECT public.entitlement_audit_drop_oldest(1)")
    functions.execute("SELECT public.entitlement_audit_ensure_partitions(4)")
    assert _months(rows) == sorted({*before, _month(-4)})


def test_the_sweep_does_all_its_work_as_the_functions_role(database_url: str, rows: Rows) -> None:
    """A1, R1: months made and dropped, every policy; and it says so if it was told to drop what it may not."""
    _make_months(rows, 30)
    with _sweep(database_url, ENTITLEMENT_AUDIT_RETENTION_MONTHS="12") as sweep:
        with pytest.raises(InternalError, match="ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database"):
            run_worker(sweep, budget())
        rows.execute("INSERT INTO audit_retention (keep_months) VALUES (12)")
        rows.execute(f"DROP TABLE {_month(-3)}")
        result = run_worker(sweep, budget())
    assert (result["months_made"], result["months_dropped"]) == ([_month(-3)], [_month(30)])
    assert result["complete"]


def test_migrations_write_down_what_the_functions_may_forget(owner_url: str, rows: Rows) -> None:
    """A1: as the parameter says, also by several at once; without it, nothing may be forgotten."""
    settings = load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url})

    def run(months: int | None) -> list[dict[str, Any]]:
        assert handle({}, MigrationRuntime(settings, months)) == {"applied": []}
        return rows.execute("SELECT keep_months FROM audit_retention").fetchall()

    assert run(24) == [{"keep_months": 24}]
    assert run(36) == [{"keep_months": 36}]
    assert run(None) == []
    at_once(4, lambda _: handle({}, MigrationRuntime(settings, 12)))
    assert rows.execute("SELECT keep_months FROM audit_retention").fetchall() == [{"keep_months": 12}]


def test_the_role_is_made_once_by_migrations_that_run_at_once(databases: Databases) -> None:
    """Databases of one cluster share their roles; whoever comes second uses what is there."""
    name = f"grantwire_race_{uuid.uuid4().hex[:8]}"

    def create(_: int) -> None:
        with psycopg.connect(databases.cluster.url(), autocommit=True) as connection:
            connection.execute(_create_role(name))

    try:
        at_once(6, create)
        with psycopg.connect(databases.cluster.url()) as connection:
            found = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", (name,)).fetchall()
        assert found == [(False,)]
    finally:
        _administer(databases, sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_an_owner_who_may_not_make_roles_is_told_what_to_have_run(databases: Databases) -> None:
    """Nothing is applied, and the message has the statement."""
    with _plain_owner(databases) as url, psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="the role grantwire_absent is missing"
        ) as caught:
            connection.execute(_create_role("grantwire_absent"))
        assert "CREATE ROLE grantwire_absent NOLOGIN;" in (caught.value.diag.message_hint or "")


def test_an_owner_without_any_attribute_migrates_where_the_role_exists(databases: Databases) -> None:
    """As with a DBA who gives out nothing but a database: and the functions work in it."""
    with _plain_owner(databases) as url:
        assert migrate(url, MIGRATIONS)
        with Client(databases.url_for_functions(url)) as client:
            assert client.grant("k").status == 200
            assert client.revoke("k2").status == 200
        with psycopg.connect(url) as owner:
            assert owner.execute("SELECT count(*) FROM entitlement_audit").fetchall() == [(2,)]


def test_the_local_stack_has_both_roles(server: PostgresServer, tmp_path: Any) -> None:
    """What `make up` makes: functions with a password of their own, no temporary tables, no other database."""
    local_database.create(server)
    local_database.migrate(server, tmp_path / "migrations")
    local_database.create(server)  # as at every start
    owner = local_database.owner_url(server)
    url = local_database.functions_url(owner, server)
    assert urlsplit(url).password not in {server.password, None}
    assert urlsplit(url).password != urlsplit(owner).password
    with Client(url) as client:
        assert client.grant("k").status == 200
    with psycopg.connect(url, autocommit=True) as functions:
        for statement in ("CREATE TEMPORARY TABLE mine (id int)", "DELETE FROM entitlement_audit", "CREATE ROLE mine"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                functions.execute(statement.encode())
        assert len(_ensure(functions, 5, None)) == 2  # as an owner who is no superuser
    with psycopg.connect(owner) as connection:
        assert connection.execute("SELECT count(*) FROM entitlement_audit").fetchall() == [(1,)]


def _create_role(name: str) -> bytes:
    """The statement of the migration that makes the role, for another name."""
    text = (MIGRATIONS / "0001_roles.sql").read_text()
    statement = re.search(r"^DO \$\$.*?^\$\$;", text, re.MULTILINE | re.DOTALL)
    assert statement is not None
    assert "CREATE ROLE grantwire_functions" in statement[0]
    return statement[0].replace("grantwire_functions", name).encode()


@contextmanager
def _plain_owner(databases: Databases) -> Iterator[str]:
    """Address of an empty database for its owner, a role without any attribute."""
    name = f"grantwire_plain_{uuid.uuid4().hex[:8]}"
    url = databases.empty()
    parts = urlsplit(url)
    role, database = sql.Identifier(name), sql.Identifier(parts.path.lstrip("/"))
    _administer(databases, sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(name)))
    _administer(databases, sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, role))
    try:
        yield urlunsplit(parts._replace(netloc=f"{name}:{name}@{parts.netloc.rpartition('@')[2]}"))
    finally:
        databases.drop(url)
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


def _month(ago: int) -> str:
    now = datetime.now(UTC)
    year, month = divmod(now.year * 12 + now.month - 1 - ago, 12)
    return f"entitlement_audit_y{year:04}m{month + 1:02}"


def _make_months(rows: Rows, *ago: int) -> None:
    for one in ago:
        day = f"{_month(one)[-7:-3]}-{_month(one)[-2:]}-15"
        rows.execute("SELECT entitlement_audit_ensure_partitions(0, %s::timestamptz)", (f"{day} 12:00+00",))


def _months(rows: Rows) -> list[str]:
    found = rows.execute(
        "SELECT relname AS name FROM pg_class WHERE relname ~ '^entitlement_audit_y....m..$' ORDER BY 1"
    )
    return [row["name"] for row in found]


def _drop(connection: Connection, months: int, now: str | None) -> Any:
    statement = "SELECT entitlement_audit_drop_oldest(%s, coalesce(%s::timestamptz, now()))"
    ((name,),) = connection.execute(statement, (months, now)).fetchall()
    return name


def _ensure(connection: Connection, ahead: int, now: str | None) -> list[Any]:
    statement = "SELECT entitlement_audit_ensure_partitions(%s, coalesce(%s::timestamptz, now()))"
    return [name for (name,) in connection.execute(statement, (ahead, now)).fetchall()]
