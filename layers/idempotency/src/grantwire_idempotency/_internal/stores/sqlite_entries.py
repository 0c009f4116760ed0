"""The tables of a `SqliteStore`, and the entries of a key: the claim, the completion and the failure, live or expired.

The columns are those of the table in PostgreSQL, with times in milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.stores.interface import KeyState, KeyStatus

if TYPE_CHECKING:
    import sqlite3

    from grantwire_idempotency._internal.stores.interface import Claim, Key

SCHEMA = """
CREATE TABLE IF NOT EXISTS processed_messages (
    idempotency_key TEXT NOT NULL PRIMARY KEY,
    message_id      TEXT NOT NULL,
    message_type    TEXT NOT NULL,
    claimed_by      TEXT,
    claimed_mark    INTEGER,
    claimed_hash    TEXT,
    claimed_until   INTEGER,
    completed_by    TEXT,
    completed_mark  INTEGER,
    completed_hash  TEXT,
    completed_at    INTEGER,
    completed_until INTEGER,
    result          TEXT,
    result_until    INTEGER,
    error           TEXT,
    failed_until    INTEGER,
    expires_at      INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS processed_messages_expiry ON processed_messages (expires_at);
-- The last fencing number of all keys. No cleanup deletes the row, so the numbers only grow.
CREATE TABLE IF NOT EXISTS idempotency_fences (
    id   INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL
);
"""

_FIND = """
SELECT claimed_by, claimed_mark, claimed_hash, claimed_until, completed_by, completed_mark, completed_hash,
       completed_until, result, result_until, error, failed_until
  FROM processed_messages WHERE idempotency_key = :key
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The run that has claimed or completed a key; all fields are None if there is none."""

    token: str | None = None
    mark: int | None = None
    content_hash: str | None = None
    until: int | None = None

    def is_live(self, now: int) -> bool:
        """Return whether the claim or the completion has not expired."""
        return self.until is not None and self.until > now

    def content_hash_for(self, key: Key) -> str:
        """Return the content hash for a key that can be compared with it."""
        return self.content_hash or "" if self.mark == key.mark else ""


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a key, and how they decide about a claim."""

    claim: Run = Run()
    completion: Run = Run()
    result: str | None = None
    result_until: int | None = None
    error: str | None = None
    failed_until: int | None = None

    @classmethod
    def find(cls, connection: sqlite3.Connection, key: Key) -> Entries:
        """Read the entries of a key."""
        row = connection.execute(_FIND, {"key": key.value}).fetchone()
        return cls() if row is None else cls(Run(*row[:4]), Run(*row[4:8]), *row[8:])

    def cover(self, key: Key, now: int) -> bool:
        """Return whether the completion makes the key a duplicate."""
        return self.completion.is_live(now) and key.is_covered_by(self.completion.mark)

    def are_taken(self, claim: Claim, now: int) -> bool:
        """Return whether another run has the key."""
        return (self.claim.is_live(now) and self.claim.token != claim.token) or self.cover(claim.key, now)

    def hold(self, claim: Claim, now: int) -> bool:
        """Return whether the claim is live."""
        return self.claim.is_live(now) and self.claim.token == claim.token

    def live_result(self, now: int) -> str | None:
        """Return the result, unless it has expired before the completion."""
        return self.result if self.result_until is not None and self.result_until > now else None

    def live_error(self, now: int) -> str | None:
        """Return the error of the failure, unless it has expired."""
        return self.error if self.failed_until is not None and self.failed_until > now else None

    def state(self, now: int) -> KeyState | None:
        """Return the state of the key."""
        error = self.live_error(now)
        if self.claim.is_live(now):
            return KeyState(KeyStatus.IN_PROGRESS, None, None, self.claim.mark, self.claim.content_hash or "")
        if self.completion.is_live(now):
            run, result = self.completion, self.live_result(now)
            return KeyState(KeyStatus.COMPLETED, result, error, run.mark, run.content_hash or "")
        return None if error is None else KeyState(KeyStatus.FAILED, error=error)
