"""Locks as rows in PostgreSQL: one round trip for each step, and expiry by the clock of the database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.locks.interface import LockManager

with optional_package("psycopg", used_by="PostgresLocks"):
    from grantwire_idempotency._internal.postgres.databases import PsycopgDatabase
    from grantwire_idempotency._internal.postgres.runners import statement_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import LiteralString

    from psycopg import Connection

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.postgres.protocols import StatementRunner
    from grantwire_idempotency._internal.postgres.sources import ConnectionPool

    Clock = Callable[[], datetime | None]

# A statement that waited for a concurrent change sees the new lease. The owner may replace its own row, because the
# statement is sent again if its response was lost. RETURNING draws the fencing number when the row is written: one that
# VALUES drew would be older than the number of an owner for which the statement waited.
_ACQUIRE = """
WITH acquired AS (
  INSERT INTO distributed_locks AS held (lock_key, owner, acquired_at, lease_until)
  VALUES (%(key)s, %(owner)s, coalesce(%(now)s::timestamptz, now()), coalesce(%(now)s::timestamptz, now()) + %(ttl)s)
  ON CONFLICT (lock_key) DO UPDATE
     SET owner = EXCLUDED.owner, acquired_at = EXCLUDED.acquired_at, lease_until = EXCLUDED.lease_until
   WHERE held.lease_until <= EXCLUDED.acquired_at OR held.owner = EXCLUDED.owner
  RETURNING nextval('idempotency_fences') AS fence)
SELECT (SELECT fence FROM acquired)
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

    `database` is a DSN, a psycopg connection, a pool of psycopg_pool, or an object with the methods of StatementRunner.
    Each step is its own transaction. Safe in threads, which take turns on a single connection. Tests set `clock`;
    without it the clock of the database counts.
    """

    def __init__(
        self,
        database: str | Connection[Any] | ConnectionPool | StatementRunner,
        *,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logger=logger, sleep=sleep, monotonic=monotonic)
        self._database = statement_runner(database, "PostgresLocks", logger, timeout)
        self._clock: Clock = clock or (lambda: None)

    def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, PsycopgDatabase):
            self._database.close()

    def _try_acquire(self, key: str, token: str, ttl: timedelta) -> _LeaseRow | None:
        parameters = {"key": key, "owner": token, "now": self._clock(), "ttl": ttl}
        (fence,) = self._database.fetch_row(_ACQUIRE, parameters)
        return None if fence is None else _LeaseRow(self._database, self._clock, key, token, fence)


@dataclass(frozen=True, slots=True)
class _LeaseRow:
    """A row of `distributed_locks`; valid while it has the owner's token."""

    database: StatementRunner
    clock: Clock
    key: str
    owner: str
    fence: int

    def extend(self, ttl: timedelta) -> bool:
        """See `Lease`."""
        return self._execute(_EXTEND, ttl=ttl)

    def release(self) -> bool:
        """See `Lease`."""
        return self._execute(_RELEASE)

    def _execute(self, statement: LiteralString, **parameters: timedelta) -> bool:
        """Run a statement and return whether this owner held the lock."""
        row = self.database.fetch_row(
            statement, {"key": self.key, "owner": self.owner, "now": self.clock(), **parameters}
        )
        return bool(row[0])
