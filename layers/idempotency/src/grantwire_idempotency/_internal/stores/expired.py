"""Expired rows, which `python -m grantwire_idempotency cleanup` counts and deletes in small batches.

No decision depends on them: each entry has its own time, and a cleanup only gives the space back. `postgres_expired`
has those of a database.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency._internal.stores.sqlite import SqliteStore
from grantwire_idempotency.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ExpiredRows(Protocol):
    """The expired rows of these tables."""

    tables: Sequence[str]

    def count(self) -> Sequence[int]:
        """Return how many rows of each table have expired."""

    def delete_batch(self, table: str) -> int:
        """Delete up to 1,000 rows of a table, the oldest first, and return how many were deleted."""

    def close(self) -> None:
        """Close the connection."""


class SqliteExpiredRows:
    """The expired rows of a SqliteStore."""

    tables: Sequence[str] = ("processed_messages",)

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise ConfigError([f"there is no file {path}"])
        self._store = SqliteStore(path)

    def count(self) -> Sequence[int]:
        """See `ExpiredRows`."""
        return [self._store.count_expired()]

    def delete_batch(self, _table: str) -> int:
        """See `ExpiredRows`."""
        return self._store.cleanup()

    def close(self) -> None:
        """See `ExpiredRows`."""
        self._store.close()
