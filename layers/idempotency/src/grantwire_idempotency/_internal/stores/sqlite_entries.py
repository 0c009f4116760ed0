"""What a SQLite file knows about a key, and what follows from it: the rules of `SqliteStore`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grantwire_idempotency._internal.stores.interface import Claim, Key


@dataclass(frozen=True, slots=True)
class Entries:
    """The claim, the completion and the failure of a key, live or expired."""

    claimed_by: str | None = None
    claimed_mark: int | None = None
    claimed_until: int | None = None
    completed_by: str | None = None
    completed_mark: int | None = None
    completed_until: int | None = None
    result: str | None = None
    result_until: int | None = None
    error: str | None = None
    failed_until: int | None = None
    claimed_hash: str | None = None
    completed_hash: str | None = None

    def is_claimed(self, now: int) -> bool:
        """Return whether the claim is live."""
        return self.claimed_until is not None and self.claimed_until > now

    def is_completed(self, now: int) -> bool:
        """Return whether the completion is live."""
        return self.completed_until is not None and self.completed_until > now

    def covers(self, key: Key, now: int) -> bool:
        """Return whether the completion makes the key a duplicate."""
        return self.is_completed(now) and key.is_covered_by(self.completed_mark)

    def is_taken(self, claim: Claim, now: int) -> bool:
        """Return whether another run has the key."""
        return (self.is_claimed(now) and self.claimed_by != claim.token) or self.covers(claim.key, now)

    def holds(self, claim: Claim, now: int) -> bool:
        """Return whether the claim is live and can be completed."""
        return self.is_claimed(now) and self.claimed_by == claim.token and not self.covers(claim.key, now)

    def live_result(self, now: int) -> str | None:
        """Return the result if it has not expired."""
        return self.result if self.result_until is not None and self.result_until > now else None

    def live_error(self, now: int) -> str | None:
        """Return the error of the last run if it has not expired."""
        return self.error if self.failed_until is not None and self.failed_until > now else None

    def claimed_content(self, key: Key) -> str:
        """Return the content hash of the claim, if it has the mark of the key."""
        return self.claimed_hash or "" if self.claimed_mark == key.mark else ""

    def completed_content(self, key: Key) -> str:
        """Return the content hash of the completion, if it has the mark of the key."""
        return self.completed_hash or "" if self.completed_mark == key.mark else ""
