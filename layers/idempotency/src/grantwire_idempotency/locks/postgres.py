"""Locks as lease rows in PostgreSQL: one round trip each, by the database's clock."""

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

# Whoever waited for another's insert or update sees its lease, not the one before. Its own row may be replaced, because
# the statement is sent once more if its answer was lost.
_TAKE = """
WITH taken AS (
  INSERT INTO distributed_locks AS held (lock_key, owner, acquired_at, lease_until)
  VALUES (%(key)s, %(owner)s, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now()) + %(ttl)s)
  ON CONFLICT (lock_key) DO UPDATE
     SET owner = EXCLUDED.owner, acquired_at = EXCLUDED.acquired_at, lease_until = EXCLUDED.lease_until
   WHERE held.lease_until <= EXCLUDED.acquired_at OR held.owner = EXCLUDED.owner
  RETURNING lock_key)
SELECT EXISTS (SELECT FROM taken)
"""

_EXTEND = """
WITH extended AS (
  UPDATE distributed_locks SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(ttl)s
   WHERE lock_key = %(key)s AND owner = %(owner)s AND lease_until > coalesce(%(now)s::timestamptz, now())
  RETURNING lock_key)
SELECT EXISTS (SELECT FROM extended)
"""

# A lease that has ended is deleted too, if nobody has taken it: it is of no more use.
_RELEASE = """
WITH released AS (
  DELETE FROM distributed_locks WHERE lock_key = %(key)s AND owner = %(owner)s RETURNING lease_until)
SELECT EXISTS (SELECT FROM released WHERE lease_until > coalesce(%(now)s::timestamptz, now()))
"""


class PostgresLocks(LockManager):
    """Locks in the table `distributed_locks`.

    Each step is a transaction of its own, so not for use inside one of the same Database; and for one thread at a time,
    as the Database is. `clock` is None in production: time is the database's.
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
        require((database is not None, "PostgresLocks needs a database"))
        self._database = database
        self._clock: Clock = clock or (lambda: None)

    def _take(self, key: str, token: str, ttl: timedelta) -> _LeaseRow | None:
        row = _LeaseRow(self._database, self._clock, key, token)
        return row if row.holds(_TAKE, ttl=ttl) else None


@dataclass(frozen=True, slots=True)
class _LeaseRow:
    """A row as long as it bears the owner's token."""

    database: StatementRunner
    clock: Clock
    key: str
    owner: str

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        return self.holds(_EXTEND, ttl=ttl)

    def release(self) -> bool:
        """See `Lease`."""
        return self.holds(_RELEASE)

    def holds(self, statement: LiteralString, **parameters: timedelta) -> bool:
        """Run a statement that says whether the row was this owner's."""
        row = self.database.fetch_row(
            statement, {"key": self.key, "owner": self.owner, "now": self.clock(), **parameters}
        )
        return bool(row[0])
