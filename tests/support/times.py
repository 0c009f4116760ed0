"""Times of entitlements in tests. No test sleeps: `pass_time` moves the times of all entitlements into the past."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.expiry import Expiry, ExpirySettings
from grantwire.entitlements.settings import TimeSettings
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT
from tests.support.worker_runner import run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg


def in_hours(hours: float) -> str:
    """Return the time in so many hours, as a request has it."""
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def pass_time(rows: psycopg.Connection[Any], hours: float) -> None:
    """Let so many hours pass for all entitlements."""
    rows.execute(
        "UPDATE entitlements SET starts_at = starts_at - %(passed)s, expires_at = expires_at - %(passed)s,"
        " updated_at = updated_at - %(passed)s",
        {"passed": timedelta(hours=hours)},
    )


def run_expiry(database_url: str, **environ: str) -> dict[str, Any]:
    """Run the worker until nothing is due, and return its counts."""
    with expiry_worker(database_url, **environ) as worker:
        return run_worker(worker)


@contextmanager
def expiry_worker(database_url: str, **environ: str) -> Iterator[Expiry]:
    """Make a worker, which can be run several times as in one execution environment."""
    environ = {**PLAINTEXT, "DATABASE_URL": database_url, **environ}
    database = Database(load(DatabaseSettings, environ))
    try:
        yield Expiry(database, load(TimeSettings, environ), load(ExpirySettings, environ))
    finally:
        database.close()


def history(rows: psycopg.Connection[Any]) -> list[tuple[str, int, str]]:
    """Return operation, version and status of every applied change of an entitlement, in order of version."""
    applied = rows.execute(
        "SELECT operation, version, status FROM entitlement_audit WHERE outcome = 'APPLIED'"
        " ORDER BY user_id, stock_keeping_unit, version"
    )
    return [(row["operation"], row["version"], row["status"]) for row in applied]


def events(rows: psycopg.Connection[Any], aggregate_key: str | None = None) -> list[tuple[str, int]]:
    """Return type and version of every event, or of those of one entitlement, in order of version."""
    listed = rows.execute(
        "SELECT event_type, aggregate_version FROM outbox_events WHERE aggregate_key = coalesce(%s, aggregate_key)"
        " ORDER BY aggregate_key, aggregate_version",
        (aggregate_key,),
    )
    return [(row["event_type"], row["aggregate_version"]) for row in listed]
