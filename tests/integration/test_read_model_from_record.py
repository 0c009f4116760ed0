"""P2: the read model is rebuilt from the system of record after any damage, while others write."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import RetryableError
from grantwire.read_model.from_record import _REPAIR, compare
from grantwire.read_model.model import project
from grantwire.settings import load
from tests.support.concurrency import run_concurrently
from tests.support.module_database import database_url
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import (
    DAMAGE,
    Entitlement,
    clear_tables,
    copy_to_read_model,
    entitlement,
    insert_entitlements,
    payloads,
    read_model_rows,
    rebuild,
    record_rows,
)
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.read_model.from_record import RecordRebuildReport
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows

__all__ = ["database_url"]

NO_DIFFERENCES = {"missing": 0, "behind": 0, "wrong": 0, "ahead": 0, "extra": 0}
_BLOCKED = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'rebuild' AND wait_event_type = 'Lock'"""


def connect(database_url: str, **environ: str) -> Database:
    """Return a database with a long statement timeout, for a rebuild."""
    settings = load(
        DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url, "DATABASE_STATEMENT_TIMEOUT": "20s", **environ}
    )
    return Database(settings, application_name="rebuild")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The database of the rebuild."""
    database = connect(database_url)
    yield database
    database.close()


@pytest.fixture
def entitlements(rows: Rows) -> list[Entitlement]:
    """A correct read model: ten users with two entitlements each, of version 2 or 3."""
    clear_tables(rows)
    inserted = [entitlement(f"u{number}", 2 + number % 2, sku) for number in range(10) for sku in ("B", "a")]
    insert_entitlements(rows, inserted)
    copy_to_read_model(rows)
    return inserted


def change_entitlement(rows: Rows, item: Entitlement) -> None:
    """Change an entitlement in the system of record."""
    rows.execute(
        "UPDATE entitlements SET status = %s, version = %s, updated_at = %s"
        " WHERE user_id = %s AND stock_keeping_unit = %s",
        (item.status, item.version, item.time, item.user_id, item.stock_keeping_unit),
    )


def rows_with_transactions(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows with the transactions that wrote and locked them, which shows any change."""
    return rows.execute("SELECT *, xmin, xmax FROM user_entitlements ORDER BY user_id, stock_keeping_unit").fetchall()


class BlockedRebuild:
    """A rebuild that waits for the lock of the first row it has to repair, after it has taken its snapshot."""

    def __init__(self, database: Database, rows: Rows, first: Entitlement) -> None:
        self._database = database
        self._rows = rows
        self._user = first.user_id

    def run(self, database_url: str, meanwhile: Callable[[], object]) -> RecordRebuildReport:
        """Run `meanwhile` while the rebuild waits, then let it finish, and return its report."""
        self._rows.execute("UPDATE user_entitlements SET version = 1 WHERE user_id = %s", (self._user,))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url) as blocker:
            blocker.execute("SELECT FROM user_entitlements WHERE user_id = %s FOR UPDATE", (self._user,))
            report = pool.submit(rebuild, self._database)
            until("the rebuild waits for the lock", lambda: bool(self._rows.execute(_BLOCKED).fetchall()))
            meanwhile()
            blocker.rollback()
            return report.result(timeout=60)


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_difference_is_counted_and_repaired(
    database: Database, rows: Rows, entitlements: list[Entitlement], kind: str
) -> None:
    """P2: a dry run counts it and changes nothing; the rebuild repairs only the damaged rows."""
    correct = {(row["user_id"], row["stock_keeping_unit"]): row for row in rows_with_transactions(rows)}
    rows.execute(DAMAGE[kind], ("u4",))
    damaged = rows_with_transactions(rows)
    name, count = kind.partition(" ")[0], 1 if kind == "extra" else 2
    assert compare(database).as_dict() == {"source": "record", "dry_run": True, "found": NO_DIFFERENCES | {name: count}}
    assert rows_with_transactions(rows) == damaged
    report = rebuild(database)
    assert report.differences == NO_DIFFERENCES | {name: count}
    assert (report.repaired, report.removed) == ((0, 1) if kind == "extra" else (2, 0))
    assert report.complete
    assert read_model_rows(rows) == entitlements == record_rows(rows)
    others = [row for row in rows_with_transactions(rows) if row["user_id"] != "u4"]
    assert others == [correct[row["user_id"], row["stock_keeping_unit"]] for row in others]


def test_all_kinds_of_differences_are_repaired_together(
    database: Database, rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: a different damage for each user."""
    for number, damage in enumerate(DAMAGE.values()):
        rows.execute(damage, (f"u{number}",))
    assert compare(database).differences == {"missing": 2, "behind": 2, "wrong": 8, "ahead": 2, "extra": 1}
    assert rebuild(database).complete
    assert read_model_rows(rows) == entitlements
    assert compare(database).differences == NO_DIFFERENCES


def test_empty_read_model_is_restored(database: Database, rows: Rows, entitlements: list[Entitlement]) -> None:
    """P2: and it is emptied if the system of record is empty."""
    rows.execute("DELETE FROM user_entitlements")
    assert rebuild(database).repaired == len(entitlements)
    assert read_model_rows(rows) == entitlements
    rows.execute("DELETE FROM entitlements")
    assert rebuild(database).removed == len(entitlements)
    assert read_model_rows(rows) == []


def test_rebuild_of_empty_database_changes_nothing(database: Database, rows: Rows) -> None:
    """P2: a rebuild before the first grant."""
    clear_tables(rows)
    assert compare(database).differences == NO_DIFFERENCES
    assert rebuild(database).as_dict() == {
        "source": "record",
        "dry_run": False,
        "found": NO_DIFFERENCES,
        "repaired": 0,
        "removed": 0,
        "summaries": 0,
        "complete": True,
    }


@pytest.mark.usefixtures("entitlements")
def test_correct_rows_are_not_locked(database: Database, database_url: str, rows: Rows) -> None:
    """P2: a rebuild does not wait for a transaction that has locked every row, and writes nothing."""
    before = rows_with_transactions(rows)
    with psycopg.connect(database_url) as holder:
        holder.execute("UPDATE user_entitlements SET version = version + 1")
        other = connect(database_url, DATABASE_STATEMENT_TIMEOUT="10s")
        assert rebuild(other).differences == NO_DIFFERENCES
        other.close()
        holder.rollback()
    assert rebuild(database).repaired == 0
    assert [{**row, "xmax": None} for row in rows_with_transactions(rows)] == [{**row, "xmax": None} for row in before]


def test_event_projected_after_snapshot_is_not_overwritten(
    database: Database, database_url: str, rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: rows are wrong or missing in the snapshot; then events make them newer than the snapshot's record."""
    rows.execute(DAMAGE["wrong status"], ("u4",))
    rows.execute(DAMAGE["missing"], ("u5",))
    newer = [
        entitlement(item.user_id, 7, item.stock_keeping_unit) for item in entitlements if item.user_id in {"u4", "u5"}
    ]

    def change_and_project() -> None:
        for item in newer:
            change_entitlement(rows, item)
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads(newer)) == 4

    report = BlockedRebuild(database, rows, entitlements[0]).run(database_url, change_and_project)
    assert (report.repaired, report.complete) == (2, True)
    assert set(read_model_rows(rows)) >= set(newer)
    assert read_model_rows(rows) == record_rows(rows)


def test_row_of_entitlement_granted_after_snapshot_is_not_removed(
    database: Database, database_url: str, rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: the row has no entitlement in the snapshot; then the grant is committed and its event projected."""
    rows.execute("INSERT INTO user_entitlements VALUES ('u9', 'new', 'ACTIVE', 1, now())")
    granted = entitlement("u9", 2, "new")

    def change_and_project() -> None:
        insert_entitlements(rows, [granted])
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads([granted])) == 1

    report = BlockedRebuild(database, rows, entitlements[0]).run(database_url, change_and_project)
    assert (report.removed, report.complete) == (0, True)
    assert granted in read_model_rows(rows)
    assert read_model_rows(rows) == record_rows(rows)


def test_concurrent_rebuilds_run_one_after_the_other(
    database: Database, database_url: str, rows: Rows, entitlements: list[Entitlement]
) -> None:
    """P2: the second starts when the first is done, and finds no difference."""
    rows.execute(DAMAGE["extra"], ("u4",))
    waiting = "SELECT FROM pg_locks WHERE relation = 'user_entitlements'::regclass AND NOT granted"
    second = connect(database_url)

    started: list[Future[RecordRebuildReport]] = []
    with ThreadPoolExecutor(1) as pool:

        def start_second() -> None:
            started.append(pool.submit(rebuild, second))
            until("the second rebuild waits", lambda: bool(rows.execute(waiting).fetchall()))

        first = BlockedRebuild(database, rows, entitlements[0]).run(database_url, start_second)
        differences = started[0].result(timeout=60).differences
    second.close()
    assert (first.repaired, first.removed) == (2, 1)
    assert differences == NO_DIFFERENCES


@pytest.mark.parametrize("kind", ["ahead", "extra"])
def test_event_ignored_because_of_damaged_row_is_not_lost(
    database: Database, database_url: str, rows: Rows, entitlements: list[Entitlement], kind: str
) -> None:
    """P2: while the row is ahead, the projection ignores the event; so the rebuild makes a second pass."""
    if kind == "ahead":
        rows.execute(DAMAGE["ahead"], ("u4",))
        late = entitlement("u4", 3, "a")
    else:
        rows.execute("INSERT INTO user_entitlements VALUES ('u4', 'new', 'ACTIVE', 50, now())")
        late = entitlement("u4", 1, "new")

    def change_and_project() -> None:
        if kind == "ahead":
            change_entitlement(rows, late)
        else:
            insert_entitlements(rows, [late])
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads([late])) == 0

    report = BlockedRebuild(database, rows, entitlements[0]).run(database_url, change_and_project)
    assert report.complete
    assert late in read_model_rows(rows)
    assert read_model_rows(rows) == record_rows(rows)


@pytest.mark.usefixtures("entitlements")
def test_locked_row_without_entitlement_is_left_and_reported(database: Database, database_url: str, rows: Rows) -> None:
    """P2: waiting for its lock could deadlock with a bridge; all other rows are repaired, and a repeat completes it."""
    rows.execute(DAMAGE["extra"], ("u4",))
    rows.execute(DAMAGE["missing"], ("u6",))
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM user_entitlements WHERE stock_keeping_unit = 'never granted' FOR UPDATE")
        report = rebuild(database)
        assert report.differences == NO_DIFFERENCES | {"missing": 2, "extra": 1}
        assert (report.repaired, report.removed, report.complete) == (2, 0, False)
        holder.rollback()
    report = rebuild(database)
    assert (report.removed, report.complete) == (1, True)
    assert read_model_rows(rows) == record_rows(rows)


def test_concurrent_rebuilds_and_bridges_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """P2: two rebuilds and two bridges over the same damaged rows, repeatedly."""
    clear_tables(rows)
    users = [f"{name}{number}" for number in range(40) for name in ("a", "B", "_", "é")]
    insert_entitlements(rows, [entitlement(user, 4) for user in users])

    def run_one(number: int) -> int:
        if number < 2:
            database = connect(database_url)
            try:
                report = rebuild(database)
            finally:
                database.close()
            assert report.complete
            return report.repaired
        with psycopg.connect(database_url) as tx:
            batch = payloads(entitlement(user, version) for user in users for version in (3, 4))
            return project(tx, batch[:: 1 - 2 * (number % 2)])

    for _ in range(3):
        rows.execute("DELETE FROM user_entitlements")
        rows.execute("INSERT INTO user_entitlements SELECT user_id, 'never', 'ACTIVE', 1, now() FROM entitlements")
        rows.execute(
            "INSERT INTO user_entitlements SELECT user_id, stock_keeping_unit, 'ACTIVE', 1, now() FROM entitlements"
        )
        # Each entitlement is updated once, by a rebuild or by a bridge.
        assert sum(run_concurrently(4, run_one)) == len(users)
        assert read_model_rows(rows) == record_rows(rows)


def test_rebuild_reads_rows_by_primary_key(rows: Rows) -> None:
    """P2: the check for a changed row costs one index lookup, however many rows differ."""
    clear_tables(rows)
    insert_entitlements(rows, [entitlement(f"u{number}", 1) for number in range(3000)])
    copy_to_read_model(rows)
    rows.execute("ANALYZE entitlements, user_entitlements")
    plan = "\n".join(line["QUERY PLAN"] for line in rows.execute(f"EXPLAIN {_REPAIR}").fetchall())
    assert "Index Scan using user_entitlements_pkey on user_entitlements seen" in plan


def test_rebuild_fails_without_postgresql_and_can_be_repeated(server: PostgresServer) -> None:
    """P2: nothing is partly done, and a repeat succeeds when PostgreSQL is back."""
    database = connect(server.url())
    assert rebuild(database).complete
    server.stop()
    try:
        with pytest.raises(RetryableError):
            rebuild(database)
    finally:
        server.start()
    assert rebuild(database).complete
    database.close()
