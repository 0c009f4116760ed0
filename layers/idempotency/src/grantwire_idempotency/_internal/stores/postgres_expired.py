"""The expired rows of a PostgreSQL database; see `expired`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.stores.interface import CLEANUP_BATCH
from grantwire_idempotency._internal.stores.postgres_queries import Queries

with optional_package("psycopg", used_by="the cleanup of PostgreSQL"):
    from grantwire_idempotency._internal.postgres.databases import PsycopgDatabase
    from grantwire_idempotency._internal.postgres.runners import statement_runner

if TYPE_CHECKING:
    from collections.abc import Sequence

# A count reads every expired row, so it may take longer than a statement of a store.
_TIMEOUT = timedelta(minutes=1)

_COUNT = """
SELECT (SELECT count(*) FROM processed_messages WHERE expires_at <= now()),
       (SELECT count(*) FROM idempotency_keys WHERE expires_at <= now()),
       (SELECT count(*) FROM distributed_locks WHERE lease_until <= now())
"""

_DELETE_KEYS = """
WITH deleted AS (
  DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM idempotency_keys WHERE expires_at <= now()
     ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT count(*) FROM deleted
"""

# A lock can be acquired as soon as its lease has ended, with or without its row.
_DELETE_LOCKS = """
WITH deleted AS (
  DELETE FROM distributed_locks WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM distributed_locks WHERE lease_until <= now()
     ORDER BY lease_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT count(*) FROM deleted
"""


class PostgresExpiredRows:
    """The expired rows of stores, transaction guards and locks."""

    tables: Sequence[str] = ("processed_messages", "idempotency_keys", "distributed_locks")

    def __init__(self, dsn: str) -> None:
        self._database = statement_runner(dsn, "cleanup", timeout=_TIMEOUT)
        messages = Queries(None).cleanup()
        self._deletes = {
            "processed_messages": (messages.statement, messages.parameters),
            "idempotency_keys": (_DELETE_KEYS, {"limit": CLEANUP_BATCH}),
            "distributed_locks": (_DELETE_LOCKS, {"limit": CLEANUP_BATCH}),
        }

    def count(self) -> Sequence[int]:
        """See `ExpiredRows`."""
        return self._database.fetch_row(_COUNT, {})

    def delete_batch(self, table: str) -> int:
        """See `ExpiredRows`."""
        statement, parameters = self._deletes[table]
        return int(self._database.fetch_row(statement, parameters)[0])

    def close(self) -> None:
        """See `ExpiredRows`."""
        if isinstance(self._database, PsycopgDatabase):
            self._database.close()
