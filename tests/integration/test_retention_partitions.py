"""A1: the monthly partitions of the audit are created ahead, and dropped only if a setting allows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.observability import metrics
from grantwire.retention import RetentionSettings, Sweep
from grantwire.retention.partitions import drop_oldest_partition, ensure_partitions
from grantwire.settings import load
from tests.support.concurrency import meet, run_concurrently
from tests.support.dead_letters import budget
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from tests.integration.conftest import Rows

NOW = datetime(2031, 5, 10, 12, tzinfo=UTC)


@pytest.fixture
def sweep(owner_url: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that runs one sweep at `now` with these settings. Only the schema owner may pass another time."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))

    def run(now: datetime | None = NOW, **settings: str) -> dict[str, Any]:
        return run_worker(Sweep(database, load(RetentionSettings, settings), now), budget())

    yield run
    database.close()


def test_partitions_are_created_three_months_ahead(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: each sweep creates the missing partitions of this month and the next three."""
    assert sweep()["months_made"] == [f"entitlement_audit_y2031m{month:02}" for month in (5, 6, 7, 8)]
    assert sweep()["months_made"] == []
    assert sweep(NOW + timedelta(days=31))["months_made"] == ["entitlement_audit_y2031m09"]
    assert _partitions(rows)[-1] == "entitlement_audit_y2031m09"


def test_rows_in_the_default_partition_are_reported_and_moved(
    rows: Rows, sweep: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A1: rows move to the partitions of their months, also of past months. The next sweep reports nothing."""
    _insert_audit_rows(
        rows, "2031-01-31 23:59:59.999999+00", "2031-02-01 00:00+00", "2031-05-10 12:00+00", "2040-01-01 00:00+00"
    )
    metrics.clear_metrics()
    assert sweep()["in_default"] == 4
    assert "AuditRowsInDefault" in metrics.metric_set
    assert '"level":"ERROR"' in capsys.readouterr().out
    counts = "SELECT tableoid::regclass::text AS name, count(*) AS n FROM entitlement_audit GROUP BY 1 ORDER BY 1"
    assert {row["name"]: row["n"] for row in rows.execute(counts)} == {
        "entitlement_audit_y2031m01": 1,
        "entitlement_audit_y2031m02": 1,
        "entitlement_audit_y2031m05": 1,
        "entitlement_audit_y2040m01": 1,
    }
    metrics.clear_metrics()
    assert sweep()["in_default"] == 0
    assert "AuditRowsInDefault" not in metrics.metric_set


def test_partitions_are_kept_for_ever_by_default(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: without the setting nothing is dropped."""
    _create_partitions(rows, "2001-01-15", "2031-04-15")
    before = _partitions(rows)
    assert sweep()["months_dropped"] == []
    assert set(before) <= set(_partitions(rows))


def test_partitions_past_their_retention_are_dropped(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: a partition is dropped only when its last moment is past the retention; all other rows stay."""
    _create_partitions(rows, "2030-02-15", "2030-03-15", "2030-04-15", "2030-05-15", "2031-04-15")
    _insert_audit_rows(rows, "2030-03-31 23:59:59.999999+00", "2030-04-30 23:59:59.999999+00", "2030-05-01 00:00+00")
    keep = {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "12"}
    # The last moment of April in UTC; in Berlin it is already May.
    april = sweep(datetime(2031, 4, 30, 23, 59, 59, 999999, tzinfo=UTC), **keep)
    before_2030m04 = [name for name in april["months_dropped"] if name >= "entitlement_audit_y2030m02"]
    assert before_2030m04 == ["entitlement_audit_y2030m02", "entitlement_audit_y2030m03"]
    assert sweep(datetime(2031, 5, 1, tzinfo=UTC), **keep)["months_dropped"] == ["entitlement_audit_y2030m04"]
    assert sweep(datetime(2031, 5, 31, 23, tzinfo=UTC), **keep)["months_dropped"] == []
    assert _partitions(rows)[:2] == ["entitlement_audit_y2030m05", "entitlement_audit_y2031m04"]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit").fetchall() == [{"n": 1}]


def test_partition_in_use_is_dropped_by_a_later_sweep(
    owner_url: str, rows: Rows, sweep: Callable[..., dict[str, Any]]
) -> None:
    """A1: the wait for the lock is short, because grants wait behind it. The rest of the sweep continues."""
    _create_partitions(rows, "2001-01-15")
    keep = {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "24"}
    now = datetime.now(UTC)
    with psycopg.connect(owner_url) as reader:
        reader.execute("SELECT count(*) FROM entitlement_audit")
        result = sweep(now, **keep)
        assert (result["months_dropped"], result["complete"]) == ([], True)
    assert sweep(now, **keep)["months_dropped"] == ["entitlement_audit_y2001m01"]


def test_concurrent_sweeps_create_each_partition_once(owner_url: str, rows: Rows) -> None:
    """A1: they also drop each partition once, and none fails."""
    _create_partitions(rows, "2001-01-15", "2001-02-15")

    def run(_: int) -> dict[str, Any]:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))
        settings = load(RetentionSettings, {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "240"})
        try:
            return run_worker(Sweep(database, settings, NOW), budget())
        finally:
            database.close()

    results = run_concurrently(4, run)
    assert sorted(name for result in results for name in result["months_made"]) == [
        f"entitlement_audit_y2031m{month:02}" for month in (5, 6, 7, 8)
    ]
    run(0)
    assert _partitions(rows)[0] > "entitlement_audit_y2001m02"


@pytest.mark.parametrize(
    ("maintain", "results"),
    [
        (lambda tx: drop_oldest_partition(tx, 24), ("entitlement_audit_y2001m01", "entitlement_audit_y2001m02")),
        (lambda tx: len(ensure_partitions(tx, NOW)), (4, 0)),
    ],
    ids=["drop", "create"],
)
def test_sweeps_that_meet_maintain_partitions_one_after_the_other(
    owner_url: str, rows: Rows, maintain: Callable[[Connection], object], results: tuple[object, object]
) -> None:
    """A1: the second one decides when the first has committed, so both succeed."""
    _create_partitions(rows, "2001-01-15", "2001-02-15")
    # Here the wait ends when the first one commits, however busy the machine is.
    rows.execute("ALTER FUNCTION entitlement_audit_drop_oldest SET lock_timeout = '30s'")
    with psycopg.connect(owner_url) as first, psycopg.connect(owner_url, autocommit=True) as second:
        assert maintain(first) == results[0]
        assert meet(first, second, rows, maintain) == (results[1], True)


def test_setting_must_keep_at_least_one_month() -> None:
    """A1: the current month cannot be dropped by mistake."""
    with pytest.raises(ConfigError, match="ENTITLEMENT_AUDIT_RETENTION_MONTHS must be between 1 and 1200"):
        load(RetentionSettings, {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "0"})


def _partitions(rows: Rows) -> list[str]:
    partitions = rows.execute("""
        SELECT inhrelid::regclass::text AS name FROM pg_inherits
         WHERE inhparent = 'entitlement_audit'::regclass AND inhrelid <> 'entitlement_audit_default'::regclass
         ORDER BY 1""")
    return [row["name"] for row in partitions]


def _create_partitions(rows: Rows, *days: str) -> None:
    for day in days:
        rows.execute("SELECT entitlement_audit_ensure_partitions(0, %s::timestamptz)", (f"{day} 12:00+00",))


def _insert_audit_rows(rows: Rows, *times: str) -> None:
    rows.execute(
        """
        INSERT INTO entitlement_audit
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail,
                version, status, changed_at)
        SELECT gen_random_uuid(), time, 'c', 'GRANT', 'APPLIED', 'u', 's', '{}', 1, 'ACTIVE', time
          FROM unnest(%s::timestamptz[]) time""",
        (list(times),),
    )
