"""Migrations: each file is applied once and in order, and infra/schema.sql is their result."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import dict_row

from functions.migrate_database.handler import MIGRATIONS as SHIPPED
from functions.migrate_database.handler import SQL as SHIPPED_SQL
from functions.migrate_database.handler import handle
from grantwire.database import migrations
from grantwire.database.migrations import Schema, SqlFile, read_functions, read_migrations, read_schema
from grantwire.errors import InternalError
from grantwire.runtime.migration import MigrationRuntime
from infra.local.errors import CommandError
from infra.local.stack import database as stack_database
from infra.local.stack.schema import MAJOR, dump_schema
from tests.support.client import Client
from tests.support.concurrency import run_concurrently
from tests.support.migrations import migrate
from tests.support.paths import MIGRATIONS, ROOT, SQL
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

_DEPLOY = ROOT / "docs" / "deploy.md"


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """A database without a schema."""
    url = databases.empty()
    yield url
    databases.drop(url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the numbered files that a test can change."""
    return shutil.copytree(MIGRATIONS, tmp_path / "migrations")


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A copy of the functions that a test can change."""
    return shutil.copytree(SQL, tmp_path / "sql")


def list_files() -> list[str]:
    """Return the names of all files in the order in which they are applied."""
    schema = read_schema(MIGRATIONS, SQL)
    return [file.name for file in (*schema.migrations, *schema.functions)]


def test_every_file_is_applied_once_and_in_order(empty_url: str) -> None:
    """Tables of the library, tables of the service, all functions, the last step. A second run applies nothing."""
    schema = read_schema(MIGRATIONS, SQL)
    assert migrate(empty_url) == list_files()
    assert migrate(empty_url) == []
    with psycopg.connect(empty_url) as connection:
        tables = connection.execute("SELECT name FROM schema_migrations ORDER BY applied_at, name").fetchall()
        functions = connection.execute("SELECT name FROM schema_functions").fetchall()
    assert [row[0] for row in tables] == [file.name for file in schema.migrations]
    assert {row[0] for row in functions} == {file.name for file in schema.functions}
    assert schema.migrations[0].name == "idempotency/0001_idempotency_keys.sql"
    assert schema.functions[-1].name == "after_functions.sql"


def test_files_of_the_library_are_read_from_its_package() -> None:
    """The migration applies all SQL files of the installed package."""
    folder = resources.files("grantwire_idempotency").joinpath("sql")
    shipped = {file.name for kind in ("tables", "functions") for file in folder.joinpath(kind).iterdir()}
    assert shipped - {"order.txt"} == {name.partition("/")[2] for name in list_files() if "/" in name}


def test_schema_of_the_library_works_without_roles_of_the_service(empty_url: str) -> None:
    """The files of the library alone create tables and functions that work."""
    library = resources.files("grantwire_idempotency").joinpath("sql")
    files = [*read_migrations(library.joinpath("tables")), *read_functions(library.joinpath("functions"))]
    assert not [file.name for file in files if b"grantwire" in file.sql]
    with psycopg.connect(empty_url) as connection:
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


def test_edited_migration_is_an_error(empty_url: str, folder: Path) -> None:
    """An applied file must not change. The error says what to do."""
    migrate(empty_url, folder)
    first = min(folder.iterdir())
    first.write_text(first.read_text() + "\n-- harmless?\n")
    with pytest.raises(InternalError, match=r"edited after it was applied: 0001_.*write a new migration"):
        migrate(empty_url, folder)


def test_missing_migration_is_an_error(empty_url: str, folder: Path) -> None:
    """An older checkout must not run against a newer database unnoticed."""
    migrate(empty_url, folder)
    max(folder.iterdir()).unlink()
    with pytest.raises(InternalError, match="its file is missing"):
        migrate(empty_url, folder)


def test_migration_numbered_before_an_applied_one_is_an_error(empty_url: str, folder: Path) -> None:
    """This detects two branches that used the same number. The library has numbers of its own."""
    migrate(empty_url, folder)
    (folder / "0000_late.sql").write_text("SELECT 1;")
    with pytest.raises(InternalError, match=r"0000_late\.sql; give it the next number"):
        migrate(empty_url, folder)


def test_database_from_before_the_baseline_is_rejected(empty_url: str) -> None:
    """The database is not changed. The error says what to do and what that deletes."""
    with psycopg.connect(empty_url) as connection:
        connection.execute(_SCHEMA_MIGRATIONS_BEFORE)
        connection.execute("INSERT INTO schema_migrations (name, checksum) VALUES ('0001_idempotency_keys.sql', 'c')")
    with pytest.raises(InternalError, match=r"`make clean`, which deletes everything under \.grantwire: the database"):
        migrate(empty_url)
    with psycopg.connect(empty_url) as connection:
        tables = connection.execute("SELECT relname FROM pg_class WHERE relname = 'outbox_events'").fetchall()
    assert tables == []


def test_make_up_explains_that_a_database_is_from_before_the_baseline(server: PostgresServer, tmp_path: Path) -> None:
    """The last line of the log that `make up` prints is the message, not a traceback."""
    stack_database.create(server)
    stack_database.migrate(server, tmp_path / "state")
    change = "UPDATE schema_migrations SET name = %s WHERE name = %s"
    names = ("0001_idempotency_keys.sql", "0001_roles.sql")
    with psycopg.connect(stack_database.owner_url(server), autocommit=True) as connection:
        connection.execute(change, names)
        with pytest.raises(CommandError) as caught:
            stack_database.migrate(server, tmp_path / "state")
        connection.execute(change, names[::-1])
    assert caught.value.log is not None
    last = caught.value.log.read_text().splitlines()[-1]
    assert last.startswith("this database was made before the migrations became one baseline")
    assert "run `make clean`, which deletes everything under .grantwire" in last
    stack_database.migrate(server, tmp_path / "state")


@pytest.mark.parametrize("name", ["5_short.sql", "0001_twice.sql", "0099-dash.sql", "0099_Capital.sql"])
def test_invalid_migration_name_is_an_error(folder: Path, name: str) -> None:
    """Numbers have four digits and are unique."""
    (folder / name).write_text("SELECT 1;")
    with pytest.raises(InternalError, match=r"not named like|used twice"):
        read_migrations(folder)


def test_folder_without_migrations_is_an_error(tmp_path: Path) -> None:
    """A package that was built without its migrations must not report success."""
    with pytest.raises(InternalError, match="no migrations"):
        read_migrations(tmp_path)


def test_failed_migration_is_rolled_back(empty_url: str, folder: Path) -> None:
    """The files before it stay applied, and the next run continues with the corrected file."""
    broken = folder / "9999_broken.sql"
    broken.write_text("CREATE TABLE partial (n integer); SELECT 1 / 0;")
    with pytest.raises(InternalError, match=r"9999_broken.sql failed and was rolled back: division by zero"):
        migrate(empty_url, folder)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT to_regclass('partial'), to_regclass('entitlements')::text").fetchall() == [
            (None, "entitlements")
        ]
    broken.write_text("CREATE TABLE complete (n integer);")
    assert migrate(empty_url, folder)[0] == "9999_broken.sql"


def test_every_sql_function_has_a_file_that_is_listed(rows: Rows) -> None:
    """The database has exactly the functions in both order.txt files, each with one signature."""
    names = [file.name.rpartition("/")[2] for file in read_schema(MIGRATIONS, SQL).functions[:-1]]
    functions = rows.execute(
        "SELECT proname AS name FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ).fetchall()
    assert sorted(f"{row['name']}.sql" for row in functions) == sorted(names)


@pytest.mark.parametrize(
    ("line", "file", "problem"),
    [
        ("absent", None, "no such file: absent.sql"),
        ("rfc3339", None, "listed twice: rfc3339.sql"),
        (None, "extra.sql", "not listed: extra.sql"),
    ],
)
def test_order_file_must_match_the_folder(sql: Path, line: str | None, file: str | None, problem: str) -> None:
    """Otherwise a function would not be applied, or its order would be undefined."""
    functions = sql / "functions"
    if line is not None:
        order = functions / "order.txt"
        order.write_text(f"{order.read_text()}{line}\n")
    if file is not None:
        (functions / file).write_text("SELECT 1;")
    with pytest.raises(InternalError, match=problem):
        read_functions(functions)


def test_numbered_files_do_not_depend_on_sql_functions(empty_url: str) -> None:
    """Functions are created after them. Checks and defaults that need one belong in after_functions.sql."""
    schema = read_schema(MIGRATIONS, SQL)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        migrations.apply(connection, migrations.Schema(schema.migrations, ()))
        count = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        assert connection.execute(count).fetchall() == [(0,)]


def test_changed_function_is_applied_with_all_others(empty_url: str, sql: Path) -> None:
    """Numbered files are not applied again, and a second run applies nothing."""
    migrate(empty_url, MIGRATIONS, sql)
    _append(sql, "rfc3339", "COMMENT ON FUNCTION rfc3339 IS 'changed';")
    assert migrate(empty_url, MIGRATIONS, sql) == [file.name for file in read_schema(MIGRATIONS, SQL).functions]
    with psycopg.connect(empty_url) as connection:
        comment = "SELECT obj_description('rfc3339'::regproc)"
        assert connection.execute(comment).fetchall() == [("changed",)]
    assert migrate(empty_url, MIGRATIONS, sql) == []


def test_failed_function_rolls_all_functions_back(empty_url: str, sql: Path) -> None:
    """All functions are applied in one transaction. The error names the file."""
    migrate(empty_url, MIGRATIONS, sql)
    _append(sql, "rfc3339", "COMMENT ON FUNCTION rfc3339 IS 'changed';")
    _append(sql, "outbox_promote", "SELECT 1 / 0;")
    with pytest.raises(InternalError, match=r"outbox_promote.sql failed and was rolled back: division by zero"):
        migrate(empty_url, MIGRATIONS, sql)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT obj_description('rfc3339'::regproc)").fetchall() == [(None,)]
    shutil.copytree(SQL, sql, dirs_exist_ok=True)
    assert migrate(empty_url, MIGRATIONS, sql) == []


def test_function_dropped_by_a_migration_is_created_again(empty_url: str, folder: Path) -> None:
    """Also if the run failed between the two steps. The privileges of the function are granted again."""
    migrate(empty_url, folder)
    (folder / "9999_drop.sql").write_text("DROP FUNCTION outbox_discard;")
    with psycopg.connect(empty_url, autocommit=True) as connection:
        schema = read_schema(folder, SQL)
        with pytest.raises(InternalError):
            migrations.apply(
                connection, migrations.Schema(schema.migrations, (*schema.functions, SqlFile("x.sql", b"SELECT 1 / 0")))
            )
        assert migrate(empty_url, folder) == [file.name for file in schema.functions]
        allowed = (
            "SELECT has_function_privilege('grantwire_functions', 'outbox_discard(uuid[],timestamptz)', 'EXECUTE')"
        )
        assert connection.execute(allowed).fetchall() == [(True,)]


def test_changed_arguments_require_dropping_the_old_signature(empty_url: str, sql: Path) -> None:
    """Without the DROP there would be two functions, and the REVOKE of the file fails. Privileges are granted again."""
    migrate(empty_url, MIGRATIONS, sql)
    file = sql / "functions" / "entitlement_aggregate_key.sql"
    changed = file.read_text().replace("p_sku text)", "p_sku text, p_tenant text DEFAULT '')")
    file.write_text(changed)
    with pytest.raises(InternalError, match=r"entitlement_aggregate_key.sql failed .*is not unique"):
        migrate(empty_url, MIGRATIONS, sql)
    file.write_text(f"DROP FUNCTION IF EXISTS entitlement_aggregate_key(text, text);\n{changed}")
    assert migrate(empty_url, MIGRATIONS, sql)
    with psycopg.connect(empty_url) as connection:
        signatures = connection.execute("""
            SELECT pg_get_function_identity_arguments(oid),
                   has_function_privilege('grantwire_functions', oid, 'EXECUTE'),
                   EXISTS (SELECT FROM aclexplode(proacl) a WHERE a.grantee = 0)
              FROM pg_proc WHERE proname = 'entitlement_aggregate_key'""").fetchall()
    assert signatures == [("p_user_id text, p_sku text, p_tenant text", True, False)]


def test_new_event_type_is_accepted_in_an_existing_database(empty_url: str, sql: Path) -> None:
    """N1, K4: the check on notifications calls the SQL function, so that a new type needs no migration."""
    file = sql / "functions" / "entitlement_status_after.sql"
    kept = [line for line in file.read_text().splitlines() if "WHEN" not in line or re.search("Granted|Revoked", line)]
    file.write_text("\n".join(kept))
    migrate(empty_url, MIGRATIONS, sql)
    insert = """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload)
        VALUES (gen_random_uuid(), gen_random_uuid(), %s, 'u', 's', 1, '{}')"""
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(insert, ("EntitlementRevoked",), prepare=True)
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(insert, ("EntitlementExpired",), prepare=True)
        migrate(empty_url, MIGRATIONS)
        connection.execute(insert, ("EntitlementExpired",), prepare=True)


def test_function_contains_and_applies_the_same_files(empty_url: str) -> None:
    """A deployed stack migrates with the files of its own build."""
    assert (SHIPPED.resolve(), SHIPPED_SQL.resolve()) == (MIGRATIONS, SQL)
    runtime = MigrationRuntime.build({**PLAINTEXT, "DATABASE_URL": empty_url})
    assert handle({}, runtime, "")["applied"] == list_files()
    assert handle({}, runtime, "") == {"applied": []}


def test_schema_file_is_the_result_of_the_migrations(server: PostgresServer) -> None:
    """`infra/schema.sql` is for readers; `make schema` generates it."""
    assert server.major == MAJOR
    written = (ROOT / "infra" / "schema.sql").read_text()
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
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        SELECT gen_random_uuid(), time::timestamptz, 'c', 'GRANT', 'APPLIED', 'u', 's', '{}'
          FROM unnest(ARRAY['2031-01-01 00:00+00', '2031-01-31 23:59:59.999999+00', '2031-02-01 00:00+00']) time""")
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit_default").fetchall() == [{"n": 3}]
    rows.execute("SELECT entitlement_audit_ensure_partitions(0, '2031-01-15')")
    counts = "SELECT tableoid::regclass::text AS name, count(*) AS n FROM entitlement_audit GROUP BY 1 ORDER BY 1"
    assert [(row["name"], row["n"]) for row in rows.execute(counts)] == [
        ("entitlement_audit_default", 1),
        ("entitlement_audit_y2031m01", 2),
    ]


def test_audit_rows_of_the_previous_release_get_typed_columns(empty_url: str) -> None:
    """G1: version, status and purchase id are taken from `detail`, in every partition; a new month has the columns."""
    schema = read_schema(MIGRATIONS, SQL)
    previous = [file for file in schema.migrations if file.name.startswith(("idempotency/", "000"))]
    with psycopg.connect(empty_url, autocommit=True) as owner:
        migrations.apply(owner, Schema(tuple(previous), ()))
    with psycopg.connect(empty_url, autocommit=True, row_factory=dict_row) as owner:
        owner.execute("""
            INSERT INTO entitlement_audit
                   (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail)
            SELECT gen_random_uuid(), time::timestamptz, 'c', operation, outcome, operation || outcome, 's',
                   detail::jsonb || '{"reason": "r", "purchase_id": "p_1", "key_fingerprint": "f"}'
              FROM (VALUES ('2031-01-15', 'GRANT', 'APPLIED', '{"version": 3}'),
                           ('now', 'REVOKE', 'APPLIED', '{"version": 4}'),
                           ('now', 'GRANT', 'ENTITLEMENT_STATE_CONFLICT', '{"refusal": "already ACTIVE"}'))
                   AS a (time, operation, outcome, detail)""")
        migrate(empty_url)
        owner.execute("SELECT entitlement_audit_ensure_partitions(0, '2031-01-15')")
        owner.execute("""
            INSERT INTO entitlement_audit (operation_id, caller, operation, outcome, user_id, stock_keeping_unit,
                                           detail, occurred_at)
            VALUES (gen_random_uuid(), 'c', 'GRANT', 'APPLIED', 'new', 's', '{}', '2031-01-16')""")
        audited = owner.execute("""
            SELECT version, status, purchase_id, detail->>'refusal' AS refusal,
                   detail ?| ARRAY['version', 'purchase_id'] AS in_detail,
                   transaction_id IS NOT NULL AS has_transaction, tableoid::regclass::text ~ 'm01$' AS moved
              FROM entitlement_audit ORDER BY user_id COLLATE "C" """).fetchall()
    assert [tuple(row.values()) for row in audited] == [
        (3, "ACTIVE", "p_1", None, False, False, True),
        (None, None, "p_1", "already ACTIVE", False, False, False),
        (4, "REVOKED", "p_1", None, False, False, False),
        (None, None, None, None, False, True, True),
    ]


_FEED_COLUMNS = "(transaction_id, occurred_at, operation_id)"


@pytest.mark.parametrize(
    ("migration", "index", "columns"),
    [
        ("0023_change_feed.sql", "entitlement_audit_changes", _FEED_COLUMNS),
        (
            "0037_history_index.sql",
            "entitlement_audit_history",
            "(user_id, stock_keeping_unit, occurred_at, operation_id)",
        ),
    ],
)
def test_index_of_applied_changes_uses_indexes_that_exist(rows: Rows, migration: str, index: str, columns: str) -> None:
    """K8, K9: an operator builds those of the partitions before the migration, as docs/deploy.md says.

    Changes do not wait then. The document shows it for the index of the feed.
    """
    create = re.search(rf"CREATE INDEX {index} .*?;", (MIGRATIONS / migration).read_text(), re.DOTALL)
    before = re.search(r"SELECT format\('CREATE INDEX CONCURRENTLY .*?::regclass ", _DEPLOY.read_text(), re.DOTALL)
    assert create is not None
    assert before is not None
    assert _FEED_COLUMNS in before[0]
    rows.execute(f"DROP INDEX {index}")
    for row in rows.execute(before[0].replace(_FEED_COLUMNS, columns).encode()).fetchall():
        (statement,) = row.values()
        rows.execute(statement.encode())
    built = _indexes_of_applied_changes(rows, columns)
    assert len(built) >= 5
    rows.execute(create[0].encode())
    attached = rows.execute("SELECT inhrelid FROM pg_inherits WHERE inhparent = %s::regclass", (index,))
    assert {row["inhrelid"] for row in attached} == built == _indexes_of_applied_changes(rows, columns)


def _indexes_of_applied_changes(rows: Rows, columns: str) -> set[int]:
    """Return the partial indexes of partitions on these columns."""
    return {
        row["indexrelid"]
        for row in rows.execute(
            """SELECT x.indexrelid FROM pg_index x JOIN pg_inherits i ON i.inhrelid = x.indrelid
                WHERE i.inhparent = 'entitlement_audit'::regclass
                  AND pg_get_indexdef(x.indexrelid) LIKE %s""",
            (f"%{columns} WHERE%",),
        )
    }


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


def test_migration_does_not_block_other_statements(
    empty_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails after a short wait for a lock, so that other statements do not wait behind it for long."""
    migrate(empty_url, folder)
    (folder / "9999_alter.sql").write_text("ALTER TABLE entitlements ADD note text;")
    monkeypatch.setattr(migrations, "_SET_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(empty_url) as other:
        other.execute("SELECT * FROM entitlements")
        with pytest.raises(InternalError, match="lock timeout"):
            migrate(empty_url, folder)
    assert migrate(empty_url, folder)[0] == "9999_alter.sql"


_PARTITIONS = """
    SELECT inhrelid::regclass::text AS name FROM pg_inherits
     WHERE inhparent = 'entitlement_audit'::regclass ORDER BY 1"""

_SCHEMA_MIGRATIONS_BEFORE = """
    CREATE TABLE schema_migrations (
        name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"""


def _append(sql: Path, function: str, statement: str) -> None:
    file = sql / "functions" / f"{function}.sql"
    file.write_text(f"{file.read_text()}{statement}\n")
