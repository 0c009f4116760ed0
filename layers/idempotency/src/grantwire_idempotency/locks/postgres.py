"""Locks as rows in PostgreSQL: one round trip for each step, and expiry by the clock of the database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire_idempotency.locks.interface import LockManager
from grantwire_idempotency.wiring import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import LiteralString

    from grantwire_idempotency.database import StatementRunner

    Clock = Callable[[], datetime | None]

# A statement that waited for a concurrent INSERT or UPDATE sees the new lease. The owner may replace its own row,
# because the statement is sent again if its response was lost.
_ACQUIRE = """
WITH acquired AS (
  INSERT INTO distributed_locks AS held (lock_key, owner, acquired_at, lease_until)
  VALUES (%(key)s, %(owner)s, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now()) + %(ttl)s)
  ON CONFLICT (lock_key) DO UPDATE
     SET owner = EXCLUDED.owner, acquired_at = EXCLUDED.acquired_at, lease_until = EXCLUDED.lease_until
   WHERE held.lease_until <= EXCLUDED.acquired_at OR held.owner = EXCLUDED.owner
  RETURNING lock_key)
SELECT EXISTS (SELECT FROM acquired)
"""

_EXTEND = """
WITH extended AS (
  UPDATE distributed_locks SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(ttl)s
   WHERE lock_key = %(key)s AND owner = %(owner)s AND lease_until > coalesce(%(now)s::timestamptz, now())
  RETURNING lock_key)
SELECT EXISTS (SELECT FROM extended)
"""

# Also deletes the row of an expired lease, but then reports that the lock was no longer held.
_RELEASE = """
WITH released AS (
  DELETE FROM distributed_locks WHERE lock_key = %(key)s AND owner = %(owner)s RETURNING lease_until)
SELECT EXISTS (SELECT FROM released WHERE lease_until > coalesce(%(now)s::timestamptz, now()))
"""


class PostgresLocks(LockManager):
    """Locks in the table `distributed_locks`.

    Each step is its own transaction, so do not use it inside a transaction of the same Database. Not thread-safe,
    because the Database is not. Tests set `clock`; without it the clock of the database counts.
    """

    def __init__(
        self,
        database: StatementRunner,
        *,
        clock: Callable[[], datetime] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(sleep=sleep, monotonic=monotonic)
        require((database is not None, "PostgresLocks requires a database"))
        self._database = database
        self._clock: Clock = clock or (lambda: None)

    def _try_acquire(self, key: str, token: str, ttl: timedelta) -> _LeaseRow | None:
        row = _LeaseRow(self._database, self._clock, key, token)
        return row if row.execute(_ACQUIRE, ttl=ttl) else None


@dataclass(frozen=True, slots=True)
class _LeaseRow:
    """A row of `distributed_locks`; valid while it has the owner's token."""

    database: StatementRunner
    clock: Clock
    key: str
    owner: str

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        return self.execute(_EXTEND, ttl=ttl)

    def release(self) -> bool:
        """See `Lease`."""
        return self.execute(_RELEASE)

    def execute(self, statement: LiteralString, **parameters: timedelta) -> bool:
        """Run a statement and return whether this owner held the lock."""
        row = self.database.fetch_row(
            statement, {"key": self.key, "owner": self.owner, "now": self.clock(), **parameters}
        )
        return bool(row[0])
