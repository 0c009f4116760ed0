"""G6, P2: the counts and the last change of each user are always those of the rows of the read model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.read_model.model import project
from grantwire.settings import load
from tests.support.concurrency import meet, run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import (
    DAMAGE,
    copy_to_read_model,
    count_deadlocks,
    entitlement,
    insert_entitlements,
    payloads,
    rebuild,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.database import Connection
    from tests.integration.conftest import Rows

DIFFERENCES = "SELECT * FROM user_summaries_differences"
SUMMARIES = "SELECT * FROM user_summaries ORDER BY user_id"
RANDOM_SEED = 20260108


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The database with the role of the functions."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield database
    database.close()


def project_versions(database_url: str, *versions: tuple[str, str, int]) -> None:
    """Project the events of (user, sku, version) in one batch."""
    with psycopg.connect(database_url) as tx:
        project(tx, payloads(entitlement(user, version, sku) for user, sku, version in versions))


def test_events_change_counts_and_last_change(database_url: str, rows: Rows) -> None:
    """G6: grants, a revoke, an old event and a repeated one, of two users."""
    project_versions(database_url, ("u1", "a", 1), ("u1", "b", 1), ("u2", "a", 3))
    project_versions(database_url, ("u1", "a", 2), ("u2", "a", 2), ("u1", "b", 1))
    assert [tuple(row.values())[:7] for row in rows.execute(SUMMARIES)] == [
        ("u1", 1, 1, 0, "a", "REVOKED", 2),
        ("u2", 1, 0, 0, "a", "ACTIVE", 3),
    ]
    assert rows.execute(DIFFERENCES).fetchall() == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_statement_keeps_the_summaries_correct(database_url: str, rows: Rows, damage: str) -> None:
    """G6: also a correction by hand, and the rebuild that undoes it."""
    insert_entitlements(rows, (entitlement(user, 2, sku) for user in ("u1", "u2") for sku in ("a", "b", "c")))
    copy_to_read_model(rows)
    assert rows.execute(DIFFERENCES).fetchall() == []
    rows.execute(DAMAGE[damage], ("u1",))
    assert rows.execute(DIFFERENCES).fetchall() == []
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    assert rebuild(database).summaries == 0
    database.close()
    assert rows.execute(DIFFERENCES).fetchall() == []
    assert [(row["active"], row["revoked"]) for row in rows.execute(SUMMARIES)] == [(0, 3), (0, 3)]


def test_emptied_read_model_has_no_summaries(database_url: str, rows: Rows) -> None:
    """G6: TRUNCATE is a statement, too."""
    project_versions(database_url, ("u1", "a", 1))
    rows.execute("TRUNCATE user_entitlements")
    assert rows.execute(SUMMARIES).fetchall() == []


@pytest.mark.parametrize("values", ["active = 7", "last_version = 9", "active = 0, revoked = 4"])
def test_rebuild_repairs_wrong_summaries(database: Database, rows: Rows, values: str) -> None:
    """G6, P2: counts that are wrong although the rows are right, a missing row, and one of an unknown user."""
    insert_entitlements(rows, (entitlement(user, 1, sku) for user in ("u1", "u2", "u3") for sku in ("a", "b")))
    copy_to_read_model(rows)
    expected = rows.execute(SUMMARIES).fetchall()
    rows.execute(f"UPDATE user_summaries SET {values} WHERE user_id = 'u1'")  # noqa: S608
    rows.execute("DELETE FROM user_summaries WHERE user_id = 'u2'")
    rows.execute("INSERT INTO user_summaries VALUES ('u4', 1, 0, 0, 'a', 'ACTIVE', 1, now())")
    assert rebuild(database).summaries == 3
    *repaired, unknown = rows.execute(SUMMARIES).fetchall()
    assert repaired == expected
    assert (unknown["active"], unknown["last_version"]) == (0, None)
    assert rebuild(database).summaries == 0


def test_concurrent_bridges_and_rebuilds_keep_the_summaries_correct(database_url: str, rows: Rows) -> None:
    """G6: four bridges with batches in random order and a rebuild share few users; no deadlock, no lost count."""
    users, skus, versions = ("u1", "u2", "u3", "u4"), "abcdef", range(1, 7)
    insert_entitlements(rows, (entitlement(user, 6, sku) for user in users for sku in skus))
    events = [(user, sku, version) for user in users for sku in skus for version in versions]

    def bridge(number: int) -> None:
        order = random.Random(RANDOM_SEED + number)  # noqa: S311
        with psycopg.connect(database_url, autocommit=True) as connection:
            for _ in range(60):
                project(connection, payloads(entitlement(u, v, s) for u, s, v in order.sample(events, 8)))

    def damage_and_rebuild() -> None:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
        for number in range(12):
            # One row: a statement that locks several rows in another order than the bridge could deadlock by itself.
            damaged = (users[number % 4], skus[number % 6])
            rows.execute("DELETE FROM user_entitlements WHERE (user_id, stock_keeping_unit) = (%s, %s)", damaged)
            rebuild(database)
        database.close()

    run_concurrently(5, lambda number: bridge(number) if number else damage_and_rebuild())
    assert rows.execute(DIFFERENCES).fetchall() == []
    assert count_deadlocks(rows) == 0


def test_batches_that_change_users_in_opposite_order_do_not_deadlock(database_url: str, rows: Rows) -> None:
    """G6: a transaction that writes summaries waits for the other one before it writes its first."""
    with psycopg.connect(database_url) as first, psycopg.connect(database_url) as second:
        project(first, payloads([entitlement("u1", 1, "a")]))

        def change_in_opposite_order(tx: Connection) -> None:
            for user in ("u2", "u1"):
                project(tx, payloads([entitlement(user, 1, "b")]))
            tx.commit()

        met = meet(
            first, second, rows, change_in_opposite_order, lambda: project(first, payloads([entitlement("u2", 1, "a")]))
        )
    assert met.waited
    assert [(row["user_id"], row["active"]) for row in rows.execute(SUMMARIES)] == [("u1", 2), ("u2", 2)]


def test_repair_waits_for_changes_that_have_not_committed(database_url: str, rows: Rows) -> None:
    """G6, P2: otherwise it would write the counts from before a change over those from after it."""
    project_versions(database_url, ("u1", "a", 1), ("u2", "a", 1))
    rows.execute("UPDATE user_summaries SET active = 7 WHERE user_id = 'u1'")
    rows.execute("DELETE FROM user_summaries WHERE user_id = 'u2'")
    with psycopg.connect(database_url) as bridge, psycopg.connect(database_url, autocommit=True) as operator:
        project(bridge, payloads(entitlement(user, 1, "b") for user in ("u1", "u2")))
        meet(bridge, operator, rows, lambda tx: tx.execute("SELECT user_summaries_repair()"))
    assert rows.execute(DIFFERENCES).fetchall() == []
