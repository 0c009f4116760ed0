"""What the tests of the read model share: a history of rights, its events, and both sides of the comparison."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.notifications.events import payload_of
from tests.support.workers.bridge_stream import event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grantwire.events.v1 import EntitlementEvent
    from tests.integration.conftest import Rows

BEGAN = datetime(2026, 1, 8, 7, 10, tzinfo=UTC)

RECORD = "SELECT user_id, stock_keeping_unit, status, version, updated_at FROM entitlements ORDER BY 1, 2"
MODEL = "SELECT user_id, stock_keeping_unit, status, version, changed_at FROM user_entitlements ORDER BY 1, 2"

# What the bridge writes for an event, in one transaction.
PROJECTED = ("processed_events", "notifications", "user_entitlements")

# Each kind of difference, done to all rights of a user that were granted and revoked.
DAMAGE = {
    "missing": "DELETE FROM user_entitlements WHERE user_id = %s",
    "behind": "UPDATE user_entitlements SET version = version - 1, status = 'ACTIVE' WHERE user_id = %s",
    "wrong status": "UPDATE user_entitlements SET status = 'ACTIVE' WHERE user_id = %s",
    "wrong time": "UPDATE user_entitlements SET changed_at = changed_at + interval '1 microsecond' WHERE user_id = %s",
    "ahead": "UPDATE user_entitlements SET version = version + 50 WHERE user_id = %s",
    "extra": "INSERT INTO user_entitlements VALUES (%s, 'never granted', 'ACTIVE', 1, now())",
}


class Right(NamedTuple):
    """A right as a table has it."""

    user_id: str
    stock_keeping_unit: str
    status: str
    version: int
    time: datetime


def right(user_id: str, version: int, stock_keeping_unit: str = "item1") -> Right:
    """The right after so many changes: granted, revoked, granted again, a second each."""
    status = "ACTIVE" if version % 2 else "REVOKED"
    return Right(user_id, stock_keeping_unit, status, version, BEGAN + timedelta(seconds=version))


def event_of(one: Right) -> EntitlementEvent:
    """The event of the change that led to it."""
    return event(
        event_type="EntitlementGranted" if one.status == "ACTIVE" else "EntitlementRevoked",
        user_id=one.user_id,
        stock_keeping_unit=one.stock_keeping_unit,
        version=one.version,
        occurred_at=one.time,
    )


def payloads(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Their events as the projection takes them."""
    return [payload_of(event_of(one).SerializeToString()) for one in rights]


def model(rows: Rows) -> list[Right]:
    """The read model as it is."""
    return [Right(*row.values()) for row in rows.execute(MODEL)]


def record(rows: Rows) -> list[Right]:
    """The system of record, which it should equal."""
    return [Right(*row.values()) for row in rows.execute(RECORD)]


def keep(rows: Rows, rights: Iterable[Right]) -> None:
    """Put rights into the system of record."""
    with rows.cursor() as cursor:
        cursor.executemany("INSERT INTO entitlements VALUES (%s, %s, %s, %s, %s)", list(rights))


def copy(rows: Rows) -> None:
    """Make the read model what the record is."""
    rows.execute("INSERT INTO user_entitlements SELECT * FROM entitlements")


def clear(rows: Rows) -> None:
    """Empty every table that a test of the read model writes; for a handful of rows quicker than TRUNCATE."""
    for table in ("entitlements", "idempotency_keys", "outbox_events", *PROJECTED):
        rows.execute(f"DELETE FROM {table}")  # noqa: S608


def deadlocks(rows: Rows) -> int:
    """How often PostgreSQL has ended somebody in a circle, in this test's database."""
    (row,) = rows.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchall()
    return int(row["deadlocks"])
