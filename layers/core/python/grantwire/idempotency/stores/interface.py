"""What every store is: the one place that decides whether a message is new.

A store remembers two things about a key. A *claim* says that somebody is at work on it, until the claim's time is up. A
*record* says what became of it: completed, with the result, or failed, with the error. A record lives for its own time.

    check         no live claim, and no live completed record ───────────▶ New          the key is claimed, atomically
                  a completed record (at this mark or a later one) ──────▶ Duplicate    with the result that was stored
                  somebody else's live claim ────────────────────────────▶ InProgress
    store_result  New ▶ completed; the claim is gone
    store_failure New ▶ failed; the claim is gone, so that the next check finds the key new

Two checks at the same time never both get New. A worker that dies leaves its claim, which ends by itself.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from grantwire.errors import BadRequestError
from grantwire.validation import clean_text

if TYPE_CHECKING:
    from datetime import timedelta

LONGEST_KEY = 256
_LONGEST_TYPE = 100
# Redis counts marks in floating point: up to here every whole number is exact. In microseconds it is the year 2255.
LARGEST_MARK = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two messages the same one.

    With a `mark`, messages that share a key come in an order: a version, or a time in microseconds. Then only a mark
    above the last completed one is new. `message_id` and `message_type` are for people who look into the store.
    """

    value: str
    mark: int | None = None
    message_id: str = ""
    message_type: str = ""

    def __post_init__(self) -> None:
        """Refuse what some store could not hold, whichever is used: BadRequestError."""
        clean_text("idempotency key", self.value, longest=LONGEST_KEY)
        if self.mark is not None and (isinstance(self.mark, bool) or not isinstance(self.mark, int)):
            raise BadRequestError("mark must be a whole number")
        if self.mark is not None and not 0 <= self.mark <= LARGEST_MARK:
            raise BadRequestError(f"mark must be between 0 and {LARGEST_MARK}, not {self.mark}")
        if self.message_id:
            clean_text("message id", self.message_id, longest=LONGEST_KEY)
        if self.message_type:
            clean_text("message type", self.message_type, longest=_LONGEST_TYPE)

    def covered_by(self, completed: int | None) -> bool:
        """Whether a completed record with that mark makes this a duplicate; without a mark on either side it does."""
        return self.mark is None or completed is None or self.mark <= completed


@dataclass(frozen=True, slots=True)
class New:
    """The key is claimed for whoever holds this; hand it to `store_result` or `store_failure`."""

    key: Key
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The work was done before; `result` is what was stored then, or None."""

    key: Key
    result: str | None


@dataclass(frozen=True, slots=True)
class InProgress:
    """Somebody is at it; unless that ends earlier, the key is free again after `free_in`."""

    key: Key
    free_in: timedelta


Check = New | Duplicate | InProgress


class Status(StrEnum):
    """What a store knows of a key."""

    IN_PROGRESS = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a key, for those who only look: it may have changed by the time it is read.

    `mark` is the completed mark, or of a claim the claimed one. A completed record keeps its `result` when a later mark
    fails; `error` is then that failure.
    """

    status: Status
    result: str | None = None
    error: str | None = None
    mark: int | None = None


class Store(Protocol):
    """Decides atomically; every method raises RetryableError if the store is out of reach."""

    def check(self, key: Key, ttl: timedelta) -> Check:
        """Claim the key for `ttl` unless it is completed or claimed. Of any number of callers at once one gets New."""

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """Complete the key; for `ttl` from now every check finds a Duplicate with `result`.

        A claim whose time was up still counts as long as nobody else took the key. LeaseLostError if somebody else has
        a live claim on it, or has completed it (with a mark: completed this mark or a later one).
        """

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """Give the key back, so that the next check finds it new; the error may be looked up for `ttl`.

        An older completed mark stays completed. Changes nothing if the claim is no longer this one.
        """

    def get_result(self, key: Key) -> Record | None:
        """What is known of the key: a live claim before a record. Decides nothing."""

    def cleanup(self) -> int:
        """Delete what has expired, as much as is good for one call, unless the store does so by itself; how much."""
