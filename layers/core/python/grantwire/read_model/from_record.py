"""Rebuild of the read model from the system of record, in one statement (P2).

An entitlement is committed before its event can be projected. So a row of the read model that is ahead of the system of
record in the same snapshot is wrong. A row that is newer than the snapshot was written by an event and is kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grantwire.operator_actions import record_rebuild

if TYPE_CHECKING:
    from typing import LiteralString

    from grantwire.database import Connection, Database
    from grantwire.operator_actions import OperatorAction

# No event can cause these: a version that the entitlement never had, or an entitlement that does not exist.
_IMPOSSIBLE = ("ahead", "extra")
DIFFERENCES = ("missing", "behind", "wrong", *_IMPOSSIBLE)
MAX_PASSES = 5

_REPAIR_SUMMARIES = "SELECT user_summaries_repair()"

_COMPARE = "SELECT difference, count(*) FROM user_entitlements_differences GROUP BY difference"

# Only rows that differ are locked, in the same order as the bridge locks them. A locked row is overwritten if it is
# older than the system of record, or if it is unchanged since the snapshot of the statement (`seen`). If an event has
# changed it since, it is correct. Rows without an entitlement are deleted last, and only if no other transaction
# has locked them: waiting could cause a deadlock.
_REPAIR = """
WITH compared AS MATERIALIZED (
  SELECT * FROM user_entitlements_differences),
repaired AS (
  INSERT INTO user_entitlements AS known
         (user_id, stock_keeping_unit, status, version, changed_at, starts_at, expires_at)
  SELECT user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at FROM compared
   WHERE difference <> 'extra'
   ORDER BY user_id, stock_keeping_unit
      ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
     SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at,
         starts_at = EXCLUDED.starts_at, expires_at = EXCLUDED.expires_at
   WHERE known.version < EXCLUDED.version
      OR EXISTS (
           SELECT FROM user_entitlements seen
            WHERE (seen.user_id, seen.stock_keeping_unit) = (known.user_id, known.stock_keeping_unit)
              AND (seen.status, seen.version, seen.changed_at, seen.starts_at, seen.expires_at)
                  IS NOT DISTINCT FROM
                  (known.status, known.version, known.changed_at, known.starts_at, known.expires_at))
  RETURNING 1),
removed AS (
  DELETE FROM user_entitlements WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM compared c JOIN user_entitlements r
        ON (r.user_id, r.stock_keeping_unit, r.status, r.version, r.changed_at)
         = (c.user_id, c.stock_keeping_unit, c.seen_status, c.seen_version, c.seen_changed_at)
     WHERE c.difference = 'extra' AND (SELECT count(*) FROM repaired) >= 0
       FOR UPDATE OF r SKIP LOCKED))
  RETURNING 1)
SELECT difference, count(*) FROM compared GROUP BY difference
UNION ALL SELECT 'repaired', count(*) FROM repaired
UNION ALL SELECT 'removed', count(*) FROM removed
"""

# Allows one rebuild at a time, and conflicts with no other statement of Grantwire.
_LOCK = "LOCK TABLE user_entitlements IN SHARE UPDATE EXCLUSIVE MODE"


@dataclass(slots=True)
class RecordRebuildReport:
    """How many rows differed in the first pass, by kind of difference, and how many were repaired and removed.

    `summaries` is how many users had wrong counts or a wrong last change although their rows were correct.

    `complete` is false if rows that no event can explain are left.
    """

    dry_run: bool
    differences: Counter[str] = field(default_factory=Counter)
    repaired: int = 0
    removed: int = 0
    summaries: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the function's result."""
        done = {
            "repaired": self.repaired,
            "removed": self.removed,
            "summaries": self.summaries,
            "complete": self.complete,
        }
        return {
            "source": "record",
            "dry_run": self.dry_run,
            "found": dict(self.differences),
            **({} if self.dry_run else done),
        }


def compare(database: Database) -> RecordRebuildReport:
    """Count the differences and change nothing; a row that is behind or missing may only wait for its event."""
    with database.session() as connection:
        return RecordRebuildReport(dry_run=True, differences=_count(connection, _COMPARE))


def repair_pass(connection: Connection, report: RecordRebuildReport, action: OperatorAction, number: int) -> None:
    """Repair all rows that differ, record the action, and add the counts to the report, in the caller's transaction.

    Events may be processed meanwhile, and correct rows are not changed. While a row is ahead, the projection ignores
    the events of its entitlement as old. So a pass that found such a row is followed by another. By then the system of
    record has the ignored changes, and no further event is ignored.
    """
    connection.execute(_LOCK)
    counts = _count(connection, _REPAIR)
    repaired, removed = counts.pop("repaired"), counts.pop("removed")
    record_rebuild(connection, action, number, repaired + removed)
    report.repaired += repaired
    report.removed += removed
    report.differences = report.differences or counts
    report.complete = not any(counts[name] for name in _IMPOSSIBLE)


def repair_summaries(database: Database, report: RecordRebuildReport) -> None:
    """Repair the counts of users whose rows are correct, and add their number to the report."""
    (repaired,) = database.fetch_row(_REPAIR_SUMMARIES, {})
    report.summaries += repaired


def _count(connection: Connection, statement: LiteralString) -> Counter[str]:
    return Counter(dict.fromkeys(DIFFERENCES, 0) | dict(connection.execute(statement).fetchall()))
