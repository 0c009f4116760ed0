"""The read model against the system of record: what differs, and one statement that mends it (P2).

A right is committed before its event can be projected. So whatever one snapshot shows ahead of the record in the same
snapshot is wrong; whatever is newer than the snapshot came from an event, and stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import LiteralString

    from grantwire.database import Connection, Database

# A version that the record never had, or a right that it does not have.
_IMPOSSIBLE = ("ahead", "extra")
DIFFERENCES = ("missing", "behind", "wrong", *_IMPOSSIBLE)
_MOST_PASSES = 5

_COMPARE = "SELECT difference, count(*) FROM user_entitlements_differences GROUP BY difference"

# Only rows that differ are touched, sorted as the bridge sorts them. After its lock a row is overwritten if it is older
# than the record, or still what this statement's snapshot shows (`seen`); one that has moved on since is right. Rows
# without a right go last, and only if nobody has them in hand: a wait here could close a circle.
_MEND = """
WITH compared AS MATERIALIZED (
  SELECT * FROM user_entitlements_differences),
mended AS (
  INSERT INTO user_entitlements AS known (user_id, stock_keeping_unit, status, version, changed_at)
  SELECT user_id, stock_keeping_unit, status, version, updated_at FROM compared
   WHERE difference <> 'extra'
   ORDER BY user_id, stock_keeping_unit
      ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
     SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at
   WHERE known.version < EXCLUDED.version
      OR EXISTS (
           SELECT FROM user_entitlements seen
            WHERE (seen.user_id, seen.stock_keeping_unit) = (known.user_id, known.stock_keeping_unit)
              AND (seen.status, seen.version, seen.changed_at) = (known.status, known.version, known.changed_at))
  RETURNING 1),
removed AS (
  DELETE FROM user_entitlements WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM compared c JOIN user_entitlements r
        ON (r.user_id, r.stock_keeping_unit, r.status, r.version, r.changed_at)
         = (c.user_id, c.stock_keeping_unit, c.seen_status, c.seen_version, c.seen_changed_at)
     WHERE c.difference = 'extra' AND (SELECT count(*) FROM mended) >= 0
       FOR UPDATE OF r SKIP LOCKED))
  RETURNING 1)
SELECT difference, count(*) FROM compared GROUP BY difference
UNION ALL SELECT 'mended', count(*) FROM mended
UNION ALL SELECT 'removed', count(*) FROM removed
"""

# One rebuild at a time; nobody else notices this lock.
_TAKE_TURNS = "LOCK TABLE user_entitlements IN SHARE UPDATE EXCLUSIVE MODE"


@dataclass(slots=True)
class RecordRebuildReport:
    """How many rows differed at first sight and how, what was done about it, and whether nothing impossible is left."""

    dry_run: bool
    found: Counter[str] = field(default_factory=Counter)
    mended: int = 0
    removed: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The answer."""
        done = {} if self.dry_run else {"mended": self.mended, "removed": self.removed, "complete": self.complete}
        return {"source": "record", "dry_run": self.dry_run, "found": dict(self.found), **done}


def compare(database: Database) -> RecordRebuildReport:
    """Count the differences and change nothing. What is behind or missing may be an event on its way."""
    with database.session() as connection:
        return RecordRebuildReport(dry_run=True, found=_counted(connection, _COMPARE))


def rebuild(database: Database) -> RecordRebuildReport:
    """Make the read model what the record says, while events flow; a healthy one is not touched.

    While a row is ahead, the events of its right look old and are dropped. So after one was mended the record is asked
    once more: by then it has those changes, and from then on no event is dropped.
    """
    report = RecordRebuildReport(dry_run=False, complete=False)
    for _ in range(_MOST_PASSES):
        with database.session() as connection, connection.transaction():
            connection.execute(_TAKE_TURNS)
            counted = _counted(connection, _MEND)
        report.mended += counted.pop("mended")
        report.removed += counted.pop("removed")
        report.found = report.found or counted
        report.complete = not any(counted[name] for name in _IMPOSSIBLE)
        if report.complete:
            break
    return report


def _counted(connection: Connection, statement: LiteralString) -> Counter[str]:
    return Counter(dict.fromkeys(DIFFERENCES, 0) | dict(connection.execute(statement).fetchall()))
