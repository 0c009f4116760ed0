"""P2: the read model is rebuilt from the system of record, whatever was wrong with it, while others write."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import RetryableError
from grantwire.read_model.from_record import _MEND, RecordRebuildReport, compare, rebuild
from grantwire.read_model.model import project
from grantwire.settings import load
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import DAMAGE, Right, clear, copy, keep, model, payloads, record, right
from tests.support.workers.relay_support import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.servers import Databases

HEALTHY = {"missing": 0, "behind": 0, "wrong": 0, "ahead": 0, "extra": 0}
_BLOCKED = """
SELECT FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'rebuild' AND wait_event_type = 'Lock'"""


def connected(database_url: str, **environ: str) -> Database:
    """A rebuild's database, with time enough."""
    settings = load(
        DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url, "DATABASE_STATEMENT_TIMEOUT": "20s", **environ}
    )
    return Database(settings, application_name="rebuild")


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all; each test begins with empty tables."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """What the rebuild works with."""
    database = connected(database_url)
    yield database
    database.close()


@pytest.fixture
def rights(rows: Rows) -> list[Right]:
    """A healthy read model: ten users with two rights each, one granted and revoked, one granted once more."""
    clear(rows)
    made = [right(f"u{number}", 2 + number % 2, sku) for number in range(10) for sku in ("B", "a")]
    keep(rows, made)
    copy(rows)
    return made


def changed(rows: Rows, one: Right) -> None:
    """Change a right in the system of record."""
    rows.execute(
        "UPDATE entitlements SET status = %s, version = %s, updated_at = %s"
        " WHERE user_id = %s AND stock_keeping_unit = %s",
        (one.status, one.version, one.time, one.user_id, one.stock_keeping_unit),
    )


def written(rows: Rows) -> list[dict[str, Any]]:
    """The rows with the transaction that wrote or locked each: equal only if nobody has touched them."""
    return rows.execute("SELECT *, xmin, xmax FROM user_entitlements ORDER BY user_id, stock_keeping_unit").fetchall()


class Held:
    """A rebuild that is held up at the first row that it has to mend, when it has seen everything already."""

    def __init__(self, database: Database, rows: Rows, first: Right) -> None:
        self._database = database
        self._rows = rows
        self._user = first.user_id

    def until_released(self, database_url: str, meanwhile: Callable[[], object]) -> RecordRebuildReport:
        """Do something in the midst of it, and let it go on to its end."""
        self._rows.execute("UPDATE user_entitlements SET version = 1 WHERE user_id = %s", (self._user,))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url) as blocker:
            blocker.execute("SELECT FROM user_entitlements WHERE user_id = %s FOR UPDATE", (self._user,))
            report = pool.submit(rebuild, self._database)
            until("the rebuild waits", lambda: bool(self._rows.execute(_BLOCKED).fetchall()))
            meanwhile()
            blocker.rollback()
            return report.result(timeout=20)


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_told_and_mended(database: Database, rows: Rows, rights: list[Right], kind: str) -> None:
    """P2: a dry run counts it and changes nothing; the rebuild mends it, and it alone."""
    healthy = {(row["user_id"], row["stock_keeping_unit"]): row for row in written(rows)}
    rows.execute(DAMAGE[kind], ("u4",))
    damaged = written(rows)
    name, count = kind.partition(" ")[0], 1 if kind == "extra" else 2
    assert compare(database).as_dict() == {"source": "record", "dry_run": True, "found": HEALTHY | {name: count}}
    assert written(rows) == damaged
    report = rebuild(database)
    assert report.found == HEALTHY | {name: count}
    assert (report.mended, report.removed) == ((0, 1) if kind == "extra" else (2, 0))
    assert report.complete
    assert model(rows) == rights == record(rows)
    others = [row for row in written(rows) if row["user_id"] != "u4"]
    assert others == [healthy[row["user_id"], row["stock_keeping_unit"]] for row in others]


def test_all_kinds_at_once_are_mended_at_once(database: Database, rows: Rows, rights: list[Right]) -> None:
    """P2: one damage for each user."""
    for number, damage in enumerate(DAMAGE.values()):
        rows.execute(damage, (f"u{number}",))
    assert compare(database).found == {"missing": 2, "behind": 2, "wrong": 4, "ahead": 2, "extra": 1}
    assert rebuild(database).complete
    assert model(rows) == rights
    assert compare(database).found == HEALTHY


def test_an_emptied_read_model_comes_back_whole(database: Database, rows: Rows, rights: list[Right]) -> None:
    """P2: from nothing, and to nothing if there is nothing."""
    rows.execute("DELETE FROM user_entitlements")
    assert rebuild(database).mended == len(rights)
    assert model(rows) == rights
    rows.execute("DELETE FROM entitlements")
    assert rebuild(database).removed == len(rights)
    assert model(rows) == []


def test_an_empty_database_needs_nothing(database: Database, rows: Rows) -> None:
    """P2: a rebuild before the first grant."""
    clear(rows)
    assert compare(database).found == HEALTHY
    assert rebuild(database).as_dict() == {
        "source": "record",
        "dry_run": False,
        "found": HEALTHY,
        "mended": 0,
        "removed": 0,
        "complete": True,
    }


@pytest.mark.usefixtures("rights")
def test_a_healthy_read_model_is_neither_locked_nor_waited_for(
    database: Database, database_url: str, rows: Rows
) -> None:
    """P2: somebody holds every row of it, and the rebuild does not notice; a second one writes nothing either."""
    before = written(rows)
    with psycopg.connect(database_url) as holder:
        holder.execute("UPDATE user_entitlements SET version = version + 1")
        impatient = connected(database_url, DATABASE_STATEMENT_TIMEOUT="10s")
        assert rebuild(impatient).found == HEALTHY
        impatient.close()
        holder.rollback()
    assert rebuild(database).mended == 0
    assert [{**row, "xmax": None} for row in written(rows)] == [{**row, "xmax": None} for row in before]


def test_what_was_projected_after_the_look_is_not_overwritten(
    database: Database, database_url: str, rows: Rows, rights: list[Right]
) -> None:
    """P2: seen wrong or missing; then an event makes each newer than what the rebuild saw of the record."""
    rows.execute(DAMAGE["wrong status"], ("u4",))
    rows.execute(DAMAGE["missing"], ("u5",))
    newer = [right(one.user_id, 7, one.stock_keeping_unit) for one in rights if one.user_id in {"u4", "u5"}]

    def flow() -> None:
        for one in newer:
            changed(rows, one)
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads(newer)) == 4

    report = Held(database, rows, rights[0]).until_released(database_url, flow)
    assert (report.mended, report.complete) == (2, True)
    assert set(model(rows)) >= set(newer)
    assert model(rows) == record(rows)


def test_a_row_whose_right_was_granted_after_the_look_is_not_removed(
    database: Database, database_url: str, rows: Rows, rights: list[Right]
) -> None:
    """P2: seen without a right; then the right is there, and its event has made a good row of it."""
    rows.execute("INSERT INTO user_entitlements VALUES ('u9', 'new', 'ACTIVE', 1, now())")
    granted = right("u9", 2, "new")

    def flow() -> None:
        keep(rows, [granted])
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads([granted])) == 1

    report = Held(database, rows, rights[0]).until_released(database_url, flow)
    assert (report.removed, report.complete) == (0, True)
    assert granted in model(rows)
    assert model(rows) == record(rows)


def test_rebuilds_take_turns(database: Database, database_url: str, rows: Rows, rights: list[Right]) -> None:
    """P2: the second looks when the first has done, and finds nothing left to do."""
    rows.execute(DAMAGE["extra"], ("u4",))
    waiting = "SELECT FROM pg_locks WHERE relation = 'user_entitlements'::regclass AND NOT granted"
    second = connected(database_url)

    started: list[Future[RecordRebuildReport]] = []
    with ThreadPoolExecutor(1) as pool:

        def start_second() -> None:
            started.append(pool.submit(rebuild, second))
            until("the second waits", lambda: bool(rows.execute(waiting).fetchall()))

        first = Held(database, rows, rights[0]).until_released(database_url, start_second)
        found = started[0].result(timeout=20).found
    second.close()
    assert (first.mended, first.removed) == (2, 1)
    assert found == HEALTHY


@pytest.mark.parametrize("kind", ["ahead", "extra"])
def test_an_event_that_looked_old_because_of_the_damage_is_not_lost(
    database: Database, database_url: str, rows: Rows, rights: list[Right], kind: str
) -> None:
    """P2: while the wrong row is still there the guard drops the event for good; so the record is asked once more."""
    if kind == "ahead":
        rows.execute(DAMAGE["ahead"], ("u4",))
        late = right("u4", 3, "a")
    else:
        rows.execute("INSERT INTO user_entitlements VALUES ('u4', 'new', 'ACTIVE', 50, now())")
        late = right("u4", 1, "new")

    def flow() -> None:
        if kind == "ahead":
            changed(rows, late)
        else:
            keep(rows, [late])
        with psycopg.connect(database_url) as tx:
            assert project(tx, payloads([late])) == 0

    report = Held(database, rows, rights[0]).until_released(database_url, flow)
    assert report.complete
    assert late in model(rows)
    assert model(rows) == record(rows)


@pytest.mark.usefixtures("rights")
def test_a_row_without_a_right_that_somebody_holds_is_left_and_said(
    database: Database, database_url: str, rows: Rows
) -> None:
    """P2: a wait for it could close a circle with a bridge; everything else is mended, and a repeat finishes it."""
    rows.execute(DAMAGE["extra"], ("u4",))
    rows.execute(DAMAGE["missing"], ("u6",))
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM user_entitlements WHERE stock_keeping_unit = 'never granted' FOR UPDATE")
        report = rebuild(database)
        assert report.found == HEALTHY | {"missing": 2, "extra": 1}
        assert (report.mended, report.removed, report.complete) == (2, 0, False)
        holder.rollback()
    report = rebuild(database)
    assert (report.removed, report.complete) == (1, True)
    assert model(rows) == record(rows)


def test_rebuilds_and_bridges_at_once_neither_deadlock_nor_spoil_anything(database_url: str, rows: Rows) -> None:
    """P2: two rebuilds and two bridges over the same damaged rows, again and again; the rebuilds take turns."""
    clear(rows)
    users = [f"{name}{number}" for number in range(40) for name in ("a", "B", "_", "é")]
    keep(rows, [right(user, 4) for user in users])

    def work(number: int) -> int:
        if number < 2:
            database = connected(database_url)
            try:
                report = rebuild(database)
            finally:
                database.close()
            assert report.complete
            return report.mended
        with psycopg.connect(database_url) as tx:
            batch = payloads(right(user, version) for user in users for version in (3, 4))
            return project(tx, batch[:: 1 - 2 * (number % 2)])

    for _ in range(3):
        rows.execute("DELETE FROM user_entitlements")
        rows.execute("INSERT INTO user_entitlements SELECT user_id, 'never', 'ACTIVE', 1, now() FROM entitlements")
        rows.execute(
            "INSERT INTO user_entitlements SELECT user_id, stock_keeping_unit, 'ACTIVE', 1, now() FROM entitlements"
        )
        # Whoever came first brought a right up, and nobody did it a second time.
        assert sum(at_once(4, work)) == len(users)
        assert model(rows) == record(rows)


def test_a_rebuild_looks_a_row_up_by_its_key(rows: Rows) -> None:
    """P2: whether a row is still what was seen costs one look, however many differ."""
    clear(rows)
    keep(rows, [right(f"u{number}", 1) for number in range(3000)])
    copy(rows)
    rows.execute("ANALYZE entitlements, user_entitlements")
    plan = "\n".join(line["QUERY PLAN"] for line in rows.execute(f"EXPLAIN {_MEND}").fetchall())
    assert "Index Scan using user_entitlements_pkey on user_entitlements seen" in plan


def test_without_postgresql_a_rebuild_fails_and_can_be_repeated(server: PostgresServer) -> None:
    """P2: nothing is half done, and it goes well when PostgreSQL is back."""
    database = connected(server.url())
    assert rebuild(database).complete
    server.stop()
    try:
        with pytest.raises(RetryableError):
            rebuild(database)
    finally:
        server.start()
    assert rebuild(database).complete
    database.close()
