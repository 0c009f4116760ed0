"""The schema: each file is applied once and in order, and infra/sql/schema.sql is their result."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
import pytest

from functions.migrate_database.handler import handle
from grantwire.database import migrations
from grantwire.database.migrations import Schema, SqlFile, read_schema, read_schema_from
from grantwire.errors import InternalError
from grantwire.wiring.tasks.migrate_database import MigrationRuntime
from infra.local.errors import CommandError
from infra.local.stack import database as stack_database
from infra.local.stack.schema import MAJOR, dump_schema
from tests.support.client import Client
from tests.support.concurrency import run_concurrently
from tests.support.migrations import migrate
from tests.support.paths import LAYER, SQL
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """A database without a schema."""
    url = databases.empty()
    yield url
    databases.drop(url)


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A copy of the SQL files that a test can change."""
    return shutil.copytree(SQL, tmp_path / "sql")


def list_files(schema: Schema | None = None) -> list[str]:
    """Return the names of all files in the order in which they are applied."""
    schema = schema or read_schema()
    return [file.name for file in (*schema.migrations, *schema.definitions)]


def upgraded(*migrations: tuple[str, str]) -> Schema:
    """Return the schema of a later release: with numbered files after the baseline."""
    files = [SqlFile(name, text.encode()) for name, text in migrations]
    return replace(read_schema(), migrations=(*read_schema().migrations, *files))


def changed(name: str, text: str) -> Schema:
    """Return the schema with text after that of one file."""
    schema = read_schema()
    return Schema(
        *(
            tuple(
                SqlFile(file.name, file.sql + text.encode()) if file.name == name else file
                for file in getattr(schema, kind)
            )
            for kind in ("migrations", "functions", "views")
        )
    )


UPGRADE = ("0001_note.sql", "ALTER TABLE entitlements ADD note text;")
NEXT = ("0002_color.sql", "ALTER TABLE entitlements ADD color text;")


def test_every_file_is_applied_once_and_in_order(empty_url: str) -> None:
    """Tables of the library, roles, tables, functions, views, triggers. A second run applies nothing."""
    schema = read_schema()
    assert migrate(empty_url) == list_files()
    assert migrate(empty_url) == []
    with psycopg.connect(empty_url) as connection:
        tables = connection.execute("SELECT name FROM schema_migrations ORDER BY applied_at, name").fetchall()
        definitions = connection.execute("SELECT name FROM schema_definitions").fetchall()
    assert [row[0] for row in tables] == [file.name for file in schema.migrations]
    assert {row[0] for row in definitions} == {file.name for file in schema.definitions}
    assert [file.name for file in schema.migrations[:2]] == ["idempotency/0001_baseline.sql", "roles.sql"]
    assert schema.definitions[-1].name == "triggers.sql"


def test_every_sql_file_is_applied() -> None:
    """No file is left out but the administrator's, which another role runs; schema.sql is their result."""
    library = resources.files("grantwire_idempotency").joinpath("sql")
    shipped = {file.name for kind in ("tables", "functions") for file in library.joinpath(kind).iterdir()}
    own = {str(file.relative_to(SQL)) for file in SQL.rglob("*.sql")} - {"schema.sql", "administrator.sql"}
    files = list_files()
    assert shipped - {"order.txt"} == {name.rpartition("/")[2] for name in files if name.startswith("idempotency/")}
    assert own == {name for name in files if not name.startswith("idempotency/")}


def test_schema_of_the_library_works_without_roles_of_the_service(empty_url: str) -> None:
    """The files of the library alone create tables and functions that work."""
    schema = read_schema()
    files = [f for f in (*schema.migrations, *schema.functions) if f.name.startswith("idempotency/")]
    assert not [file.name for file in files if b"grantwire" in file.sql]
    with psycopg.connect(empty_url) as connection:
        connection.execute("SET check_function_bodies = off")
        for file in files:
            connection.execute(file.sql)
        row = connection.execute("SELECT decision FROM idempotency_begin('c', 'r', 'k', 'v1:0', 100)").fetchone()
        assert row == ("PROCEED",)
        check = "SELECT decision FROM processed_message_check('k', 't', NULL, 'm', 'y', interval '1 min', NULL)"
        assert connection.execute(check).fetchone() == ("NEW",)


def test_concurrent_migrations_apply_each_file_once(empty_url: str) -> None:
    """Eight concurrent runs wait for each other."""
    applied = run_concurrently(8, lambda _: migrate(empty_url))
    assert sorted(name for names in applied for name in names) == sorted(list_files())


def test_upgrade_applies_new_numbers_and_all_definitions(empty_url: str) -> None:
    """The tables of the baseline are not applied again; the next release goes on from there."""
    migrate(empty_url)
    assert migrate(empty_url, upgraded(UPGRADE)) == [UPGRADE[0], *[f.name for f in read_schema().definitions]]
    assert migrate(empty_url, upgraded(UPGRADE, NEXT))[0] == NEXT[0]
    assert migrate(empty_url, upgraded(UPGRADE, NEXT)) == []


def test_edited_migration_is_an_error(empty_url: str) -> None:
    """An applied file must not change. The error says what to do."""
    migrate(empty_url, upgraded(UPGRADE))
    with pytest.raises(InternalError, match=r"edited after it was applied: 0001_note.*write a new migration"):
        migrate(empty_url, upgraded((UPGRADE[0], "SELECT 1;")))


def test_missing_migration_is_an_error(empty_url: str) -> None:
    """An older checkout must not run against a newer database unnoticed."""
    migrate(empty_url, upgraded(UPGRADE))
    with pytest.raises(InternalError, match="its file is missing: 0001_note"):
        migrate(empty_url)


def test_migration_numbered_before_an_applied_one_is_an_error(empty_url: str) -> None:
    """This detects two branches that used numbers out of order."""
    migrate(empty_url, upgraded(NEXT))
    with pytest.raises(InternalError, match=r"0001_note\.sql; give it the next number"):
        migrate(empty_url, upgraded(UPGRADE, NEXT))


def test_new_table_of_the_baseline_is_added(empty_url: str) -> None:
    """Before release 1.0.0 a new file needs no empty database."""
    migrate(empty_url)
    schema = read_schema()
    table = SqlFile("tables/zebras.sql", b"CREATE TABLE zebras (n integer);")
    assert migrate(empty_url, replace(schema, migrations=(*schema.migrations, table)))[0] == "tables/zebras.sql"


@pytest.mark.parametrize(
    ("before", "different"),
    [
        ("UPDATE schema_migrations SET checksum = 'x' WHERE name = 'tables/outbox.sql'", "tables/outbox.sql"),
        ("UPDATE schema_migrations SET name = 'tables/gone.sql' WHERE name = 'roles.sql'", "tables/gone.sql"),
        ("UPDATE schema_migrations SET name = '0001_roles.sql' WHERE name = 'roles.sql'", "0001_roles.sql"),
    ],
)
def test_database_of_another_baseline_is_rejected(empty_url: str, before: str, different: str) -> None:
    """The database is not changed. The error says what to do and what that deletes."""
    migrate(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(before.encode())
        connection.execute(
            "DROP TABLE key_conflicts; DELETE FROM schema_migrations WHERE name = 'tables/idempotency.sql'"
        )
        with pytest.raises(InternalError, match=rf"another baseline .*different: {different}.*`make clean` deletes"):
            migrate(empty_url)
        assert connection.execute("SELECT to_regclass('key_conflicts')").fetchall() == [(None,)]


def test_make_up_explains_that_a_database_is_of_another_baseline(server: PostgresServer, tmp_path: Path) -> None:
    """The log that `make up` prints is one sentence: no traceback, and no line of an earlier run."""
    stack_database.create(server)
    stack_database.migrate(server, tmp_path / "state")
    change = "UPDATE schema_migrations SET name = %s WHERE name = %s"
    with psycopg.connect(stack_database.owner_url(server), autocommit=True) as connection:
        connection.execute(change, ("0001_roles.sql", "roles.sql"))
        with pytest.raises(CommandError) as caught:
            stack_database.migrate(server, tmp_path / "state")
        connection.execute(change, ("roles.sql", "0001_roles.sql"))
    assert caught.value.log is not None
    (line,) = caught.value.log.read_text().splitlines()
    assert line.startswith("this database was made from another baseline of the schema and was not changed")
    assert "`make clean` deletes this one with everything else under .grantwire" in line
    stack_database.migrate(server, tmp_path / "state")


@pytest.mark.parametrize("name", ["5_short.sql", "0099-dash.sql", "0099_Capital.sql", "0001_one.sql 0001_two.sql"])
def test_invalid_migration_name_is_an_error(sql: Path, name: str) -> None:
    """Numbers have four digits and are unique."""
    for part in name.split():
        (sql / "migrations" / part).write_text("SELECT 1;")
    with pytest.raises(InternalError, match=r"not named like|used twice: 0001"):
        read_schema_from(sql)


def test_failed_migration_is_rolled_back(empty_url: str) -> None:
    """The files before it stay applied, and the next run continues with the corrected file."""
    with pytest.raises(InternalError, match=r"0001_x.sql failed and was rolled back: division by zero"):
        migrate(empty_url, upgraded(("0001_x.sql", "CREATE TABLE partial (n integer); SELECT 1 / 0;")))
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT to_regclass('partial'), to_regclass('entitlements')::text").fetchall() == [
            (None, "entitlements")
        ]
    assert migrate(empty_url, upgraded(("0001_x.sql", "CREATE TABLE complete (n integer);")))[0] == "0001_x.sql"


def test_every_sql_function_has_a_file_of_its_name(rows: Rows) -> None:
    """The database has exactly the functions of the files, each with one signature."""
    names = [file.name.rpartition("/")[2] for file in read_schema().functions]
    functions = rows.execute(
        "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ).fetchall()
    assert sorted(f"{row['name']}.sql" for row in functions) == sorted(names)


def test_migrations_do_not_depend_on_sql_functions(empty_url: str) -> None:
    """Functions are created after them. Checks and defaults that need one belong in triggers.sql."""
    with psycopg.connect(empty_url, autocommit=True) as connection:
        migrations.apply(connection, replace(read_schema(), functions=(), views=()))
        count = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        assert connection.execute(count).fetchall() == [(0,)]


RFC3339 = "functions/entitlements/rfc3339.sql"
COMMENTED = "COMMENT ON FUNCTION rfc3339 IS 'changed';"


def test_changed_function_is_applied_with_all_others(empty_url: str) -> None:
    """Numbered files are not applied again, and a second run applies nothing."""
    migrate(empty_url)
    assert migrate(empty_url, changed(RFC3339, COMMENTED)) == [file.name for file in read_schema().definitions]
    with psycopg.connect(empty_url) as connection:
        comment = "SELECT obj_description('rfc3339'::regproc)"
        assert connection.execute(comment).fetchall() == [("changed",)]
    assert migrate(empty_url, changed(RFC3339, COMMENTED)) == []


def test_changed_view_is_applied(empty_url: str) -> None:
    """Views are definitions like functions. A new column at the end needs no migration."""
    migrate(empty_url)
    schema = changed("views/dead_letters.sql", "COMMENT ON VIEW dead_letters IS 'changed';")
    assert migrate(empty_url, schema) == [file.name for file in read_schema().definitions]
    with psycopg.connect(empty_url) as connection:
        comment = "SELECT obj_description('dead_letters'::regclass)"
        assert connection.execute(comment).fetchall() == [("changed",)]


def test_function_can_call_one_that_is_created_later(empty_url: str) -> None:
    """Functions need no order; their bodies are checked when all of them exist."""
    schema = read_schema()
    first, later = (
        SqlFile(
            f"functions/a/{name}.sql",
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS int LANGUAGE sql AS $$ {body} $$;".encode(),
        )
        for name, body in (("aa", "SELECT zz()"), ("zz", "SELECT 1"))
    )
    assert migrate(empty_url, replace(schema, functions=(first, *schema.functions, later)))
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION zz()")
    with pytest.raises(InternalError, match=r"aa.sql failed .* function zz\(\) does not exist"):
        migrate(empty_url, replace(schema, functions=(first, *schema.functions)))


def test_failed_definition_rolls_all_definitions_back(empty_url: str) -> None:
    """All functions and views are applied in one transaction. The error names the file."""
    migrate(empty_url)
    schema = changed(RFC3339, COMMENTED)
    broken = SqlFile("views/zz.sql", b"SELECT 1 / 0;")
    with pytest.raises(InternalError, match=r"zz.sql failed and was rolled back: division by zero"):
        migrate(empty_url, replace(schema, views=(*schema.views, broken)))
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT obj_description('rfc3339'::regproc)").fetchall() == [(None,)]
    assert migrate(empty_url) == []


def test_function_dropped_by_a_migration_is_created_again(empty_url: str) -> None:
    """Also if the run failed between the two steps. The privileges of the function are granted again."""
    migrate(empty_url)
    schema = upgraded(("0001_drop.sql", "DROP FUNCTION outbox_discard;"))
    broken = replace(schema, views=(*schema.views, SqlFile("x.sql", b"SELECT 1 / 0")))
    with pytest.raises(InternalError):
        migrate(empty_url, broken)
    assert migrate(empty_url, schema) == [file.name for file in schema.definitions]
    with psycopg.connect(empty_url, autocommit=True) as connection:
        allowed = "SELECT has_function_privilege('grantwire_functions', 'outbox_discard'::regproc, 'EXECUTE')"
        assert connection.execute(allowed).fetchall() == [(True,)]


def test_changed_arguments_require_a_migration_that_drops_the_function(empty_url: str) -> None:
    """Without the DROP there would be two functions, and the REVOKE of the file fails. The error says what to do."""
    migrate(empty_url)
    name = "functions/entitlements/entitlement_aggregate_key.sql"
    drop = ("0001_drop.sql", "DROP FUNCTION entitlement_aggregate_key(text, text);")

    def with_tenant(schema: Schema) -> Schema:
        files = [
            SqlFile(f.name, f.sql.replace(b"p_sku text)", b"p_sku text, p_tenant text DEFAULT '')"))
            if f.name == name
            else f
            for f in schema.functions
        ]
        return replace(schema, functions=tuple(files))

    with pytest.raises(
        InternalError, match=r"(?s)key.sql failed .*is not unique.*drop the old one in a numbered migration"
    ):
        migrate(empty_url, with_tenant(read_schema()))
    assert migrate(empty_url, with_tenant(upgraded(drop)))
    with psycopg.connect(empty_url) as connection:
        signatures = connection.execute("""
            SELECT pg_get_function_identity_arguments(oid),
                   has_function_privilege('grantwire_functions', oid, 'EXECUTE'),
                   EXISTS (SELECT FROM aclexplode(proacl) a WHERE a.grantee = 0)
              FROM pg_proc WHERE proname = 'entitlement_aggregate_key'""").fetchall()
    assert signatures == [("p_user_id text, p_sku text, p_tenant text", True, False)]


def test_version_is_that_of_the_applied_files(empty_url: str) -> None:
    """T1: code and database compute it in the same way; every changed file changes it."""
    versions = []
    for schema in (read_schema(), changed(RFC3339, COMMENTED), upgraded(UPGRADE)):
        migrate(empty_url, schema)
        with psycopg.connect(empty_url) as connection:
            assert connection.execute("SELECT schema_version()").fetchall() == [(schema.version,)]
        versions.append(schema.version)
    assert len(set(versions)) == 3
    assert [version.partition("-")[0] for version in versions] == ["baseline", "baseline", "0001"]


def test_new_event_type_is_accepted_in_an_existing_database(empty_url: str, sql: Path) -> None:
    """N1, K4: the check on notifications calls the SQL function, so that a new type needs no migration."""
    file = sql / "functions" / "events" / "entitlement_status_after.sql"
    kept = [line for line in file.read_text().splitlines() if "WHEN" not in line or re.search("Granted|Revoked", line)]
    file.write_text("\n".join(kept))
    migrate(empty_url, read_schema_from(sql))
    insert = """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)
        VALUES (gen_random_uuid(), gen_random_uuid(), %s, 'u', 's', 1, '{}')"""
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(insert, ("EntitlementRevoked",), prepare=True)
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(insert, ("EntitlementExpired",), prepare=True)
        migrate(empty_url)
        connection.execute(insert, ("EntitlementExpired",), prepare=True)


def test_function_applies_the_files_of_its_build(empty_url: str) -> None:
    """A deployed stack migrates with the files in its layer, which are those of the checkout."""
    assert (LAYER / "grantwire" / "database" / "sql").resolve() == SQL
    runtime = MigrationRuntime.build({**PLAINTEXT, "DATABASE_URL": empty_url})
    assert handle({}, runtime, "")["applied"] == list_files()
    assert handle({}, runtime, "") == {"applied": []}


def test_schema_file_is_the_result_of_the_migrations(server: PostgresServer) -> None:
    """`infra/sql/schema.sql` is for readers; `make schema` generates it."""
    assert server.major == MAJOR
    written = (SQL / "schema.sql").read_text()
    assert written == dump_schema(server.installation.binaries, server.url())


def test_partitions_are_created_three_months_ahead(rows: Rows) -> None:
    """A1: the last step of the migration creates those of the current month in UTC and the next three."""
    names = [row["name"] for row in rows.execute(_PARTITIONS)]
    (row,) = rows.execute("""
        SELECT array_agg('entitlement_audit_y' || to_char(month, 'YYYY"m"MM') ORDER BY month) AS months
          FROM generate_series(date_trunc('month', now() AT TIME ZONE 'UTC'),
                               now() AT TIME ZONE 'UTC' + interval '3 months', interval '1 month') month""").fetchall()
    assert names == ["entitlement_audit_default", *row["months"]]


def test_only_missing_partitions_are_created(rows: Rows) -> None:
    """A1: also across the end of a year."""
    ensure = "SELECT entitlement_audit_ensure_partitions(3, %s) AS name"
    created = [row["name"] for row in rows.execute(ensure, ("2031-11-30 23:30:00-05",))]
    assert created == [f"entitlement_audit_{month}" for month in ("y2031m12", "y2032m01", "y2032m02", "y2032m03")]
    assert rows.execute(ensure, ("2031-12-31 23:59:59+00",)).fetchall() == []


def test_new_partition_takes_its_rows_from_default(rows: Rows) -> None:
    """A1: no row is lost."""
    rows.execute("""
        INSERT INTO entitlement_audit
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                version, status, changed_at)
        SELECT gen_random_uuid(), time::timestamptz, 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', 1, 'ACTIVE', now()
          FROM unnest(ARRAY['2031-01-01 00:00+00', '2031-01-31 23:59:59.999999+00', '2031-02-01 00:00+00']) time""")
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit_default").fetchall() == [{"n": 3}]
    rows.execute("SELECT entitlement_audit_ensure_partitions(0, '2031-01-15')")
    counts = "SELECT tableoid::regclass::text AS name, count(*) AS n FROM entitlement_audit GROUP BY 1 ORDER BY 1"
    assert [(row["name"], row["n"]) for row in rows.execute(counts)] == [
        ("entitlement_audit_default", 1),
        ("entitlement_audit_y2031m01", 2),
    ]


def test_partition_is_created_during_concurrent_inserts(database_url: str, rows: Rows) -> None:
    """A1: inserts into DEFAULT wait for the move. No row is lost, and no insert fails."""
    (row,) = rows.execute(
        "SELECT to_char(now() AT TIME ZONE 'UTC', '\"entitlement_audit_y\"YYYY\"m\"MM') AS name"
    ).fetchall()
    rows.execute(f"DROP TABLE {row['name']}")
    done = threading.Event()

    def write(worker: int) -> int:
        with Client(database_url) as client:
            for number in itertools.count(1):
                assert client.grant(f"{worker}-{number}", user_id=f"{worker}-{number}").status == 200
                if done.is_set():
                    return number
        raise AssertionError

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, worker) for worker in range(4)]
        while rows.execute("SELECT count(*) < 20 AS few FROM entitlement_audit_default").fetchall()[0]["few"]:
            time.sleep(0.01)
        created = rows.execute("SELECT entitlement_audit_ensure_partitions(3) AS name").fetchall()
        done.set()
        written = sum(writer.result() for writer in writers)
    assert created == [{"name": row["name"]}]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit_default").fetchall() == [{"n": 0}]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit").fetchall() == [{"n": written}]


def test_migration_does_not_block_other_statements(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails after a short wait for a lock, so that other statements do not wait behind it for long."""
    migrate(empty_url)
    monkeypatch.setattr(migrations, "_SET_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(empty_url) as other:
        other.execute("SELECT * FROM entitlements")
        with pytest.raises(InternalError, match="lock timeout"):
            migrate(empty_url, upgraded(UPGRADE))
    assert migrate(empty_url, upgraded(UPGRADE))[0] == UPGRADE[0]


_PARTITIONS = """
    SELECT inhrelid::regclass::text AS name FROM pg_inherits
     WHERE inhparent = 'entitlement_audit'::regclass ORDER BY 1"""
