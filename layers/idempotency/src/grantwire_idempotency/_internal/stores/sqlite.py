"""A store in a SQLite file, for tests and for tools on one machine. It needs only the standard library.

Each method is one write transaction, which no other process can interleave: it reads the entries of the key, decides,
and writes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import duration_rule, logger_rule, require
from grantwire_idempotency._internal.sqlite.database import SqliteDatabase
from grantwire_idempotency._internal.stores.interface import (
    CLEANUP_BATCH,
    Duplicate,
    InProgress,
    claim_lost_error,
    clamp_ttl,
    completion_ttl,
    new_claim,
    truncate_error,
    validate_result,
)
from grantwire_idempotency._internal.stores.sqlite_entries import SCHEMA, Entries

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from datetime import datetime

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.stores.interface import CheckResult, Claim, Key, KeyState

# The clock of SQLite: the time of the system, in whole milliseconds.
_NOW = "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"

_CLAIM = """
INSERT INTO processed_messages
       (idempotency_key, message_id, message_type, claimed_by, claimed_mark, claimed_hash, claimed_until, expires_at)
VALUES (:key, :message_id, :message_type, :token, :mark, :hash, :until, :until)
    ON CONFLICT (idempotency_key) DO UPDATE
   SET message_id    = excluded.message_id,
       message_type  = excluded.message_type,
       claimed_by    = excluded.claimed_by,
       claimed_mark  = excluded.claimed_mark,
       claimed_hash  = excluded.claimed_hash,
       claimed_until = excluded.claimed_until,
       expires_at    = max(excluded.claimed_until, coalesce(completed_until, 0), coalesce(failed_until, 0))
"""

_DRAW_FENCE = """
INSERT INTO idempotency_fences (id, last) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET last = last + 1
"""

_FENCE = "SELECT last FROM idempotency_fences"

_COMPLETE = """
UPDATE processed_messages
   SET message_id      = :message_id,
       message_type    = :message_type,
       claimed_by      = NULL,
       claimed_mark    = NULL,
       claimed_hash    = NULL,
       claimed_until   = NULL,
       completed_by    = :token,
       completed_mark  = :mark,
       completed_hash  = claimed_hash,
       completed_at    = :now,
       completed_until = :until,
       result          = :result,
       result_until    = :result_until,
       error           = NULL,
       failed_until    = NULL,
       expires_at      = :until
 WHERE idempotency_key = :key
"""

_FAIL = """
INSERT INTO processed_messages (idempotency_key, message_id, message_type, error, failed_until, expires_at)
VALUES (:key, :message_id, :message_type, :error, :until, :until)
    ON CONFLICT (idempotency_key) DO UPDATE
   SET message_id    = excluded.message_id,
       message_type  = excluded.message_type,
       claimed_by    = NULL,
       claimed_mark  = NULL,
       claimed_hash  = NULL,
       claimed_until = NULL,
       error         = excluded.error,
       failed_until  = excluded.failed_until,
       expires_at    = max(excluded.failed_until, coalesce(completed_until, 0))
"""

_CLEANUP = """
DELETE FROM processed_messages WHERE rowid IN
       (SELECT rowid FROM processed_messages WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit)
"""

# A row with a live claim keeps its claim: a run is working on a later mark.
_DELETE_COMPLETED = """
DELETE FROM processed_messages WHERE completed_at < :now - :age AND coalesce(claimed_until <= :now, TRUE)
"""

_COUNT_EXPIRED = "SELECT count(*) FROM processed_messages WHERE expires_at <= :now"


class SqliteStore:
    """A store that all processes with the same file share. Expiry follows the clock of the machine.

    `path` is a file on a local disk, which is created with its tables on first use. Safe in threads, which take turns,
    and across forks. While others write for longer than `timeout`, a call raises BusyError. Tests set `clock`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fail_mode: FailMode | None = None,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        require(_path_rule(path), duration_rule("timeout", timeout), logger_rule(logger))
        self.fail_mode = fail_mode
        self._clock = clock
        # The same file also after a change of the working folder.
        self._database = SqliteDatabase(Path(path).absolute(), SCHEMA, timeout, logger or default_logger)

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        claim = new_claim(key, token)
        with self._database.transaction() as tx:
            now, entries = self._find(tx, key)
            if entries.cover(key, now):
                return Duplicate(key, entries.live_result(now), entries.completion.content_hash_for(key))
            if entries.claim.until is not None and entries.are_taken(claim, now):
                free_in = timedelta(milliseconds=entries.claim.until - now)
                return InProgress(key, free_in, entries.claim.content_hash_for(key))
            tx.execute(_CLAIM, _parameters(claim, now, ttl))
            tx.execute(_DRAW_FENCE)
            (fence,) = tx.execute(_FENCE).fetchone()
            return replace(claim, fence=fence, last_error=entries.live_error(now))

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        result = validate_result(result)
        with self._database.transaction() as tx:
            now, entries = self._find(tx, claim.key)
            if entries.completion.is_live(now) and entries.completion.token == claim.token:
                return
            if not entries.hold(claim, now) or entries.cover(claim.key, now):
                raise claim_lost_error()
            parameters = _parameters(claim, now, completion_ttl(claim.key, ttl, order_ttl))
            tx.execute(_COMPLETE, {**parameters, "result": result, "result_until": now + _milliseconds(ttl)})

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        with self._database.transaction() as tx:
            now, entries = self._find(tx, claim.key)
            if not entries.are_taken(claim, now):
                tx.execute(_FAIL, {**_parameters(claim, now, ttl), "error": truncate_error(error)})

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        with self._database.transaction() as tx:
            now, entries = self._find(tx, claim.key)
            if not entries.hold(claim, now):
                raise claim_lost_error()
            tx.execute(_CLAIM, _parameters(claim, now, ttl))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        with self._database.transaction() as tx:
            now, entries = self._find(tx, key)
        return entries.state(now)

    def cleanup(self) -> int:
        """See `Store`. Deletes up to 1,000 rows, oldest first; call it again while it returns 1,000."""
        with self._database.transaction() as tx:
            return tx.execute(_CLEANUP, {"now": self._now(tx), "limit": CLEANUP_BATCH}).rowcount

    def count_expired(self) -> int:
        """Return how many rows `cleanup` would delete in all."""
        with self._database.transaction() as tx:
            return int(tx.execute(_COUNT_EXPIRED, {"now": self._now(tx)}).fetchone()[0])

    def delete_completed(self, age: timedelta) -> int:
        """Delete the completions that are older than `age`, live or not, and return how many were deleted."""
        with self._database.transaction() as tx:
            parameters = {"now": self._now(tx), "age": age // timedelta(milliseconds=1)}
            return tx.execute(_DELETE_COMPLETED, parameters).rowcount

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._database.close()

    def _find(self, tx: sqlite3.Connection, key: Key) -> tuple[int, Entries]:
        """Return the time, and the entries of the key."""
        return self._now(tx), Entries.find(tx, key)

    def _now(self, tx: sqlite3.Connection) -> int:
        if self._clock is not None:
            return int(self._clock().timestamp() * 1_000)
        return int(tx.execute(_NOW).fetchone()[0])


def _parameters(claim: Claim, now: int, ttl: timedelta) -> dict[str, Any]:
    key = claim.key
    return {
        "key": key.value,
        "token": claim.token,
        "mark": key.mark,
        "hash": key.content_hash or None,
        "message_id": key.message_id or key.value,
        "message_type": key.message_type,
        "now": now,
        "until": now + _milliseconds(ttl),
    }


def _milliseconds(ttl: timedelta) -> int:
    return clamp_ttl(ttl) // timedelta(milliseconds=1)


def _path_rule(path: object) -> tuple[bool, str]:
    is_path = isinstance(path, os.PathLike) or (
        isinstance(path, str) and path != "" and not path.startswith((":memory:", "file:", "sqlite:"))
    )
    return is_path, f"path must be the path of a file, not {path!r:.80}; in memory, use MemoryStore"
