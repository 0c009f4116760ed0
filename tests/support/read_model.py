"""Helpers for tests of the read model: entitlements, their events, and the rows of both tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.events.decoding import decode_payload
from grantwire.operator_actions import Operator, OperatorAction
from grantwire.read_model.from_record import MAX_PASSES, RecordRebuildReport, repair_pass, repair_summaries
from tests.support.workers.bridge_stream import event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grantwire.database import Database
    from grantwire.events.v1 import EntitlementEvent
    from tests.integration.conftest import Rows

OPERATOR = Operator("ann", "the read model is damaged", "a test")
ACTOR_AND_REASON: dict[str, Any] = {"actor": OPERATOR.actor, "reason": OPERATOR.reason}
START = datetime(2026, 1, 8, 7, 10, tzinfo=UTC)

_COLUMNS = "user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at"
_SELECT_RECORD = f"SELECT {_COLUMNS} FROM entitlements ORDER BY 1, 2"  # noqa: S608
_INSERT = f"INSERT INTO entitlements ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
_SELECT_READ_MODEL = "SELECT * FROM user_entitlements ORDER BY 1, 2"

_EVENT_TYPES = {"ACTIVE": "EntitlementGranted", "REVOKED": "EntitlementRevoked", "EXPIRED": "EntitlementExpired"}

# The tables that the bridge writes for an event, in one transaction.
BRIDGE_TABLES = ("processed_events", "notifications", "user_entitlements")

# Statements that cause each kind of difference in a user's rows; the entitlements were granted and revoked.
DAMAGE = {
    "missing": "DELETE FROM user_entitlements WHERE user_id = %s",
    "behind": "UPDATE user_entitlements SET version = version - 1, status = 'ACTIVE' WHERE user_id = %s",
    "wrong status": "UPDATE user_entitlements SET status = 'ACTIVE' WHERE user_id = %s",
    "wrong time": "UPDATE user_entitlements SET changed_at = changed_at + interval '1 microsecond' WHERE user_id = %s",
    "wrong end": "UPDATE user_entitlements SET expires_at = 'tomorrow' WHERE user_id = %s",
    "wrong start": "UPDATE user_entitlements SET starts_at = 'tomorrow' WHERE user_id = %s",
    "ahead": "UPDATE user_entitlements SET version = version + 50 WHERE user_id = %s",
    "extra": "INSERT INTO user_entitlements VALUES (%s, 'never granted', 'ACTIVE', 1, now())",
}


class Entitlement(NamedTuple):
    """An entitlement, with the columns of `entitlements` and of `user_entitlements`."""

    user_id: str
    stock_keeping_unit: str
    status: str
    version: int
    time: datetime
    starts_at: datetime | None = None
    expires_at: datetime | None = None


def entitlement(user_id: str, version: int, stock_keeping_unit: str = "item1") -> Entitlement:
    """Return an entitlement after `version` changes: granted, revoked, granted again, one second apart."""
    status = "ACTIVE" if version % 2 else "REVOKED"
    return Entitlement(user_id, stock_keeping_unit, status, version, START + timedelta(seconds=version))


def event_for(entitlement: Entitlement) -> EntitlementEvent:
    """Return the event of the change that led to an entitlement's version."""
    times = {"starts_at": entitlement.starts_at, "expires_at": entitlement.expires_at}
    return event(
        event_type=_EVENT_TYPES[entitlement.status],
        user_id=entitlement.user_id,
        stock_keeping_unit=entitlement.stock_keeping_unit,
        version=entitlement.version,
        occurred_at=entitlement.time,
        **{name: time for name, time in times.items() if time is not None},
    )


def payloads(entitlements: Iterable[Entitlement]) -> list[dict[str, Any]]:
    """Return the payloads of the entitlements' events, as the projection takes them."""
    return [decode_payload(event_for(item).SerializeToString()) for item in entitlements]


def read_model_rows(rows: Rows) -> list[Entitlement]:
    """Return all rows of the read model."""
    return [Entitlement(*row.values()) for row in rows.execute(_SELECT_READ_MODEL)]


def record_rows(rows: Rows) -> list[Entitlement]:
    """Return all rows of the system of record."""
    return [Entitlement(*row.values()) for row in rows.execute(_SELECT_RECORD)]


def insert_entitlements(rows: Rows, entitlements: Iterable[Entitlement]) -> None:
    """Insert entitlements into the system of record."""
    with rows.cursor() as cursor:
        cursor.executemany(_INSERT, entitlements)


def copy_to_read_model(rows: Rows) -> None:
    """Copy the system of record to the empty read model."""
    rows.execute(f"INSERT INTO user_entitlements SELECT {_COLUMNS} FROM entitlements")  # noqa: S608


def clear_tables(rows: Rows) -> None:
    """Empty every table that a test of the read model writes; faster than TRUNCATE for a few rows."""
    for table in ("entitlements", "idempotency_keys", "outbox_events", *BRIDGE_TABLES):
        rows.execute(f"DELETE FROM {table}")  # noqa: S608


def rebuild(database: Database, operator: Operator = OPERATOR) -> RecordRebuildReport:
    """Rebuild the read model from the system of record with the passes of the command."""
    report = RecordRebuildReport(dry_run=False, complete=False)
    action = OperatorAction(operator, "rebuild", "read_model", {"source": "record"})
    for number in range(MAX_PASSES):
        with database.session() as connection, connection.transaction():
            repair_pass(connection, report, action, number)
        if report.complete:
            break
    repair_summaries(database, report)
    return report


def count_deadlocks(rows: Rows) -> int:
    """Return how many deadlocks PostgreSQL has detected in the test's database."""
    (row,) = rows.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchall()
    return int(row["deadlocks"])
