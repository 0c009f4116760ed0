"""Migrations: forward only, once each, and the written schema is what they make."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from functions.migrate_database.handler import MIGRATIONS as SHIPPED
from functions.migrate_database.handler import handle
from grantwire.database import migrations
from grantwire.database.migrations import read_migrations
from grantwire.errors import InternalError
from grantwire.runtime.migration import MigrationRuntime
from infra.local.stack.schema import MAJOR, dump_schema
from tests.support.client import Client
from tests.support.concurrency import at_once
from tests.support.migrating import migrate
from tests.support.paths import MIGRATIONS, ROOT
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
def folder(tmp_path: Path) -> Path:
    """A copy of the migrations to play with."""
    return shutil.copytree(MIGRATIONS, tmp_path / "migrations")


def test_every_file_is_applied_once_and_in_order(empty_url: str) -> None:
    """A second run has nothing to do."""
    names = [migration.name for migration in read_migrations(MIGRATIONS)]
    assert migrate(empty_url, MIGRATIONS) == names
    assert migrate(empty_url, MIGRATIONS) == []
    with psycopg.connect(empty_url) as connection:
        recorded = connection.execute("SELECT name FROM schema_migrations ORDER BY name").fetchall()
    assert [row[0] for row in recorded] == names


def test_runs_that_overlap_take_turns(empty_url: str) -> None:
    """Eight at once: each file is applied by exactly one of them."""
    applied = at_once(8, lambda _: migrate(empty_url, MIGRATIONS))
    assert sorted(name for names in applied for name in names) == [
        migration.name for migration in read_migrations(MIGRATIONS)
    ]


def test_an_edited_file_is_an_error(empty_url: str, folder: Path) -> None:
    """What was applied is history; the error says what to do."""
    migrate(empty_url, folder)
    first = min(folder.iterdir())
    first.write_text(first.read_text() + "\n-- harmless?\n")
    with pytest.raises(InternalError, match=r"edited after it was applied: 0001_.*write a new migration"):
        migrate(empty_url, folder)


def test_a_lost_file_is_an_error(empty_url: str, folder: Path) -> None:
    """An older checkout must not run against a newer database unnoticed."""
    migrate(empty_url, folder)
    max(folder.iterdir()).unlink()
    with pytest.raises(InternalError, match="file is gone"):
        migrate(empty_url, folder)


def test_a_file_that_comes_too_late_is_an_error(empty_url: str, folder: Path) -> None:
    """Two branches that took the same next number are noticed."""
    migrate(empty_url, folder)
    (folder / "0000_late.sql").write_text("SELECT 1;")
    with pytest.raises(InternalError, match="give it the next number"):
        migrate(empty_url, folder)


@pytest.mark.parametrize("name", ["5_short.sql", "0001_twice.sql", "0099-dash.sql", "0099_Capital.sql"])
def test_a_badly_named_file_is_an_error(folder: Path, name: str) -> None:
    """Numbers are four digits and unique."""
    (folder / name).write_text("SELECT 1;")
    with pytest.raises(InternalError, match=r"not named like|used twice"):
        read_migrations(folder)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    """A package built without its migrations must not report success."""
    with pytest.raises(InternalError, match="no migrations"):
        read_migrations(tmp_path)


def test_a_failing_file_is_rolled_back_whole(empty_url: str, folder: Path) -> None:
    """The ones before it stay, nothing of it does, and a repaired file continues."""
    broken = folder / "9999_broken.sql"
    broken.write_text("CREATE TABLE half (n integer); SELECT 1 / 0;")
    with pytest.raises(InternalError, match=r"9999_broken.sql failed and was rolled back: division by zero"):
        migrate(empty_url, folder)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT to_regclass('half'), to_regclass('entitlements')::text").fetchall() == [
            (None, "entitlements")
        ]
    broken.write_text("CREATE TABLE whole (n integer);")
    assert migrate(empty_url, folder) == ["9999_broken.sql"]


def test_the_function_ships_and_applies_the_same_files(empty_url: str) -> None:
    """A deployed stack migrates with the files of its own build."""
    assert SHIPPED.resolve() == MIGRATIONS
    runtime = MigrationRuntime.build({**PLAINTEXT, "DATABASE_URL": empty_url})
    assert handle({}, runtime)["applied"] == [migration.name for migration in read_migrations(MIGRATIONS)]
    assert handle({}, runtime) == {"applied": []}


def test_the_written_schema_is_what_the_migrations_make(server: PostgresServer) -> None:
    """`infra/schema.sql` is for reading; `make schema` writes it anew."""
    assert server.major == MAJOR
    written = (ROOT / "infra" / "schema.sql").read_text()
    assert written == dump_schema(server.installation.binaries, server.url())


def test_partitions_are_made_ahead(rows: Rows) -> None:
    """A1: the current month in UTC and three more, by the migration itself."""
    names = [row["name"] for row in rows.execute(_PARTITIONS)]
    (row,) = rows.execute("""
        SELECT array_agg('entitlement_audit_y' || to_char(month, 'YYYY"m"MM') ORDER BY month) AS months
          FROM generate_series(date_trunc('month', now() AT TIME ZONE 'UTC'),
                               now() AT TIME ZONE 'UTC' + interval '3 months', interval '1 month') month""").fetchall()
    assert names == ["entitlement_audit_default", *row["months"]]


def test_partitions_are_made_once(rows: Rows) -> None:
    """A1: asking again makes only what is missing, across the end of a year."""
    ensure = "SELECT entitlement_audit_ensure_partitions(3, %s) AS name"
    made = [row["name"] for row in rows.execute(ensure, ("2031-11-30 23:30:00-05",))]
    assert made == [f"entitlement_audit_{month}" for month in ("y2031m12", "y2032m01", "y2032m02", "y2032m03")]
    assert rows.execute(ensure, ("2031-12-31 23:59:59+00",)).fetchall() == []


def test_rows_that_landed_in_the_default_partition_move_out(rows: Rows) -> None:
    """A1: a month is made even after DEFAULT took rows of it, and none is lost."""
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


def test_a_month_is_made_while_its_rows_keep_coming(database_url: str, rows: Rows) -> None:
    """A1: writers that fill DEFAULT wait for the move; not one row is lost or refused."""
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
        made = rows.execute("SELECT entitlement_audit_ensure_partitions(3) AS name").fetchall()
        done.set()
        written = sum(writer.result() for writer in writers)
    assert made == [{"name": row["name"]}]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit_default").fetchall() == [{"n": 0}]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit").fetchall() == [{"n": written}]


def test_a_migration_does_not_hold_up_the_traffic(
    empty_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up on a table that somebody else uses, instead of queueing everybody behind itself."""
    migrate(empty_url, folder)
    (folder / "9999_alter.sql").write_text("ALTER TABLE entitlements ADD note text;")
    monkeypatch.setattr(migrations, "_LIMIT_WAITING", "SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(empty_url) as busy:
        busy.execute("SELECT * FROM entitlements")
        with pytest.raises(InternalError, match="lock timeout"):
            migrate(empty_url, folder)
    assert migrate(empty_url, folder) == ["9999_alter.sql"]


_PARTITIONS = """
    SELECT inhrelid::regclass::text AS name FROM pg_inherits
     WHERE inhparent = 'entitlement_audit'::regclass ORDER BY 1"""
