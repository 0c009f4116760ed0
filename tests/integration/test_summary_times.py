"""K3, K5: a summary is exact by the database's clock, before a worker has recorded a start or an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.read_model.model import project
from grantwire.read_model.summary import Summaries
from grantwire.settings import load
from grantwire.validation import PageRequest
from grantwire.wiring.routes.show_summary import SummaryRuntime
from tests.integration.test_summary_route import send
from tests.support.module_database import database_url
from tests.support.plaintext import PLAINTEXT
from tests.support.read_model import Entitlement, clear_tables, entitlement, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Rows

__all__ = ["database_url"]

NOON = datetime(2027, 3, 28, 12, tzinfo=UTC)
START, END = NOON, NOON + timedelta(days=1)
GRACE = timedelta(hours=36)
MICROSECOND = timedelta(microseconds=1)
EXISTING_BODY = (
    '{"user_id":"u_123","active":1,"revoked":1,"active_rights":["a"],"last_change":'
    '{"stock_keeping_unit":"b","status":"REVOKED","version":2,"changed_at":"2026-01-08T07:10:02.000000Z"}}'
)


@pytest.fixture
def database(database_url: str, rows: Rows) -> Iterator[Database]:
    """The database of the function, with an empty read model."""
    clear_tables(rows)
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield database
    database.close()


def timed(sku: str, starts_at: datetime | None = START, expires_at: datetime | None = END) -> Entitlement:
    """Return an ACTIVE entitlement with these times."""
    return entitlement("u_123", 1, sku)._replace(starts_at=starts_at, expires_at=expires_at)


def project_events(database_url: str, *entitlements: Entitlement) -> None:
    """Project the events of these entitlements."""
    with psycopg.connect(database_url) as tx:
        project(tx, payloads(entitlements))


def summarize(database: Database, now: datetime, grace: timedelta = GRACE, **query: str) -> dict[str, Any]:
    """Return the summary at a time, through the function, which checks it against the API document."""
    summaries = Summaries(database, f"{grace.total_seconds()} seconds")
    runtime = SummaryRuntime(_At(summaries, now))  # type: ignore[arg-type]
    summary: dict[str, Any] = send(runtime, queryStringParameters=query or None).json
    return summary


class _At:
    """Summaries at a fixed time."""

    def __init__(self, summaries: Summaries, now: datetime) -> None:
        self._summaries = summaries
        self._now = now

    def get(self, page: PageRequest) -> str:
        """Return the summary at the time."""
        return self._summaries.get(page, self._now)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (START - MICROSECOND, "scheduled"),
        (START, "active"),
        (END - MICROSECOND, "active"),
        (END, "active"),
        (END + GRACE - MICROSECOND, "active"),
        (END + GRACE, "expired"),
    ],
)
def test_entitlement_counts_by_its_times(database: Database, database_url: str, now: datetime, expected: str) -> None:
    """K3, K5: from the microsecond of its start to that of its end plus grace, it is active and in the list."""
    project_events(database_url, timed("timed"), entitlement("u_123", 1, "always"))
    summary = summarize(database, now)
    is_active = expected == "active"
    assert summary["active"] == 1 + is_active
    assert summary["active_rights"] == (["always", "timed"] if is_active else ["always"])
    assert (summary.get("scheduled"), summary.get("expired")) == (
        1 if expected == "scheduled" else None,
        1 if expected == "expired" else None,
    )
    assert summary["last_change"]["status"] == "ACTIVE"


def test_end_without_grace_is_exact(database: Database, database_url: str) -> None:
    """K3: with the default setting, the entitlement ends at expires_at."""
    project_events(database_url, timed("timed"))
    assert summarize(database, END - MICROSECOND, timedelta(0))["active"] == 1
    assert summarize(database, END, timedelta(0))["active"] == 0


@pytest.mark.parametrize("missing", ["starts_at", "expires_at"])
def test_one_time_is_enough(database: Database, database_url: str, missing: str) -> None:
    """K3: an entitlement with only a start never ends, one with only an end began at once."""
    times = {"starts_at": START, "expires_at": END} | {missing: None}
    project_events(database_url, timed("timed", **times))
    before, after = summarize(database, START - MICROSECOND), summarize(database, END + GRACE)
    assert (before["active"], after["active"]) == ((1, 0) if missing == "starts_at" else (0, 1))


def test_recorded_and_due_ends_count_together(database: Database, database_url: str) -> None:
    """K3: the count is the same before and after the worker has recorded an end; a revoked one stays revoked."""
    recorded = timed("recorded")._replace(status="EXPIRED", version=2)
    project_events(database_url, recorded, timed("due"), timed("later", NOON + timedelta(days=9), None))
    project_events(database_url, timed("revoked")._replace(status="REVOKED", version=2))
    expected = {"active": 0, "revoked": 1, "scheduled": 1, "expired": 2, "active_rights": []}
    assert expected.items() <= summarize(database, END + GRACE).items()
    project_events(database_url, timed("due")._replace(status="EXPIRED", version=2))
    assert expected.items() <= summarize(database, END + GRACE).items()


def test_pages_leave_out_what_is_not_active(database: Database, database_url: str) -> None:
    """E4, K3: a page is full, next_after is a listed entry, and there is none if only inactive ones follow."""
    later, never = NOON + timedelta(days=9), None
    skus = {"a": never, "b": later, "c": later, "d": never, "e": never, "f": later}
    project_events(database_url, *(timed(sku, starts_at, None) for sku, starts_at in skus.items()))
    first = summarize(database, NOON, limit="2")
    assert (first["active"], first["scheduled"]) == (3, 3)
    assert (first["active_rights"], first["next_after"]) == (["a", "d"], "d")
    second = summarize(database, NOON, limit="2", after="d")
    assert (second["active_rights"], second.get("next_after")) == (["e"], None)


def test_user_without_times_gets_the_same_bytes_as_before(database: Database, database_url: str) -> None:
    """K3: no new fields, also where another user has times."""
    project_events(database_url, entitlement("u_123", 1, "a"), entitlement("u_123", 2, "b"))
    project_events(database_url, timed("x")._replace(user_id="u_other"))
    body = Summaries(database, "0 seconds").get(PageRequest.parse("u_123", {}), START - MICROSECOND)
    assert body == EXISTING_BODY


def test_database_clock_decides_by_default(database: Database, database_url: str, rows: Rows) -> None:
    """K3: without a time in the call."""
    project_events(database_url, *(timed(sku) for sku in ("ended", "future", "now")))
    for sku, offset in (("ended", "-1 hour"), ("future", "1 hour"), ("now", "0 seconds")):
        rows.execute(
            "UPDATE user_entitlements SET starts_at = now() + %s::interval - interval '10 minutes',"
            " expires_at = now() + %s::interval + interval '10 minutes' WHERE stock_keeping_unit = %s",
            (offset, offset, sku),
        )
    summary = send(SummaryRuntime(Summaries(database, "0 seconds"))).json
    assert (summary["active_rights"], summary["scheduled"], summary["expired"]) == (["now"], 1, 1)


def test_setting_is_the_grace_of_the_summary(database_url: str, rows: Rows) -> None:
    """K5: ENTITLEMENT_GRACE of show_summary."""
    clear_tables(rows)
    project_events(database_url, timed("timed", None, datetime.now(UTC) - timedelta(hours=1)))
    environ = {**PLAINTEXT, "DATABASE_URL": database_url}
    for grace, active in (("59m", 0), ("2h", 1), ("", 0)):
        runtime = SummaryRuntime.build({**environ, "ENTITLEMENT_GRACE": grace})
        assert f'"active":{active},' in runtime.summaries.get(PageRequest.parse("u_123", {}))
        runtime.summaries._database.close()  # noqa: SLF001 - the runtime has no method for it
