"""A1: the months of the audit are made ahead, and dropped only if a setting says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import ConfigError
from grantwire.observability import metrics
from grantwire.retention import RetentionSettings, Sweep
from grantwire.settings import load
from tests.support.concurrency import at_once
from tests.support.dead_letters import budget
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.conftest import Rows

NOW = datetime(2031, 5, 10, 12, tzinfo=UTC)


@pytest.fixture
def sweep(owner_url: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run a sweep with these settings at NOW, unless told otherwise: only the owner may claim another time."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))

    def run(now: datetime | None = NOW, **settings: str) -> dict[str, Any]:
        return run_worker(Sweep(database, load(RetentionSettings, settings), now), budget())

    yield run
    database.close()


def test_months_are_made_ahead(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: this one and three more, each hour; nothing to do if they are there."""
    assert sweep()["months_made"] == [f"entitlement_audit_y2031m{month:02}" for month in (5, 6, 7, 8)]
    assert sweep()["months_made"] == []
    assert sweep(NOW + timedelta(days=31))["months_made"] == ["entitlement_audit_y2031m09"]
    assert _months(rows)[-1] == "entitlement_audit_y2031m09"


def test_rows_in_default_are_told_about_and_moved(
    rows: Rows, sweep: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A1: into the months they belong to, also past ones that nobody made in time; then there is silence."""
    _audit(rows, "2031-01-31 23:59:59.999999+00", "2031-02-01 00:00+00", "2031-05-10 12:00+00", "2040-01-01 00:00+00")
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


def test_months_are_kept_for_ever_without_a_setting(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: dropping is a decision that somebody has to take."""
    _make(rows, "2001-01-15", "2031-04-15")
    before = _months(rows)
    assert sweep()["months_dropped"] == []
    assert set(before) <= set(_months(rows))


def test_old_months_are_dropped_by_the_setting(rows: Rows, sweep: Callable[..., dict[str, Any]]) -> None:
    """A1: whole months, only when their last moment is that old; what is in them goes, all else stays."""
    _make(rows, "2030-02-15", "2030-03-15", "2030-04-15", "2030-05-15", "2031-04-15")
    _audit(rows, "2030-03-31 23:59:59.999999+00", "2030-04-30 23:59:59.999999+00", "2030-05-01 00:00+00")
    keep = {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "12"}
    # The last moment of April in UTC, which is May already in Berlin.
    april = sweep(datetime(2031, 4, 30, 23, 59, 59, 999999, tzinfo=UTC), **keep)
    before_2030m04 = [name for name in april["months_dropped"] if name >= "entitlement_audit_y2030m02"]
    assert before_2030m04 == ["entitlement_audit_y2030m02", "entitlement_audit_y2030m03"]
    assert sweep(datetime(2031, 5, 1, tzinfo=UTC), **keep)["months_dropped"] == ["entitlement_audit_y2030m04"]
    assert sweep(datetime(2031, 5, 31, 23, tzinfo=UTC), **keep)["months_dropped"] == []
    assert _months(rows)[:2] == ["entitlement_audit_y2030m05", "entitlement_audit_y2031m04"]
    assert rows.execute("SELECT count(*) AS n FROM entitlement_audit").fetchall() == [{"n": 1}]


def test_a_month_in_use_is_dropped_another_time(
    owner_url: str, rows: Rows, sweep: Callable[..., dict[str, Any]]
) -> None:
    """A1: grants would wait behind a long wait for the lock, so it is short; the rest of the sweep goes on."""
    _make(rows, "2001-01-15")
    keep = {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "24"}
    now = datetime.now(UTC)
    with psycopg.connect(owner_url) as reader:
        reader.execute("SELECT count(*) FROM entitlement_audit")
        result = sweep(now, **keep)
        assert (result["months_dropped"], result["complete"]) == ([], True)
    assert sweep(now, **keep)["months_dropped"] == ["entitlement_audit_y2001m01"]


def test_two_sweeps_at_once_make_each_month_once(owner_url: str, rows: Rows) -> None:
    """A1: and drop each once; neither fails."""
    _make(rows, "2001-01-15", "2001-02-15")

    def run(_: int) -> dict[str, Any]:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url}))
        settings = load(RetentionSettings, {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "240"})
        try:
            return run_worker(Sweep(database, settings, NOW), budget())
        finally:
            database.close()

    results = at_once(4, run)
    assert sorted(name for result in results for name in result["months_made"]) == [
        f"entitlement_audit_y2031m{month:02}" for month in (5, 6, 7, 8)
    ]
    run(0)
    assert _months(rows)[0] > "entitlement_audit_y2001m02"


def test_the_setting_keeps_at_least_one_month() -> None:
    """A1: nobody drops the current month by mistake."""
    with pytest.raises(ConfigError, match="ENTITLEMENT_AUDIT_RETENTION_MONTHS must be between 1 and 1200"):
        load(RetentionSettings, {"ENTITLEMENT_AUDIT_RETENTION_MONTHS": "0"})


def _months(rows: Rows) -> list[str]:
    found = rows.execute("""
        SELECT inhrelid::regclass::text AS name FROM pg_inherits
         WHERE inhparent = 'entitlement_audit'::regclass AND inhrelid <> 'entitlement_audit_default'::regclass
         ORDER BY 1""")
    return [row["name"] for row in found]


def _make(rows: Rows, *days: str) -> None:
    for day in days:
        rows.execute("SELECT entitlement_audit_ensure_partitions(0, %s::timestamptz)", (f"{day} 12:00+00",))


def _audit(rows: Rows, *times: str) -> None:
    rows.execute(
        """
        INSERT INTO entitlement_audit
               (operation_id, occurred_at, caller, operation, outcome, user_id, stock_keeping_unit, detail)
        SELECT gen_random_uuid(), time, 'c', 'GRANT', 'APPLIED', 'u', 's', '{}'
          FROM unnest(%s::timestamptz[]) time""",
        (list(times),),
    )
