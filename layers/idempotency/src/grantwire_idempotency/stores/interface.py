"""What every store is: the one place that decides whether a message is new.

A store remembers three things about a key, each for its own time. A *claim*: somebody is at work on it. A *completed
record*: it was done, with the result. A *failure*: the last run ended with an error; it is there to be looked up and
decides nothing.

    check         no live claim, and no live completed record ───────────▶ New          the key is claimed, atomically
                  a completed record (at this mark or a later one) ──────▶ Duplicate    with the result that was stored
                  somebody else's live claim ────────────────────────────▶ InProgress
    store_result  New ▶ completed; claim and failure are gone
    store_failure New ▶ failed; the claim is gone, so that the next check finds the key new

Two checks at the same time never both get New. A worker that dies leaves its claim, which ends by itself.

A key is *taken* from the holder of a claim when somebody else's claim on it is live, or a completed record makes the
claim's key a duplicate. Until then the holder may finish, even past the claim's time.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from grantwire_idempotency.errors import BadRequestError, LeaseLostError
from grantwire_idempotency.validation import clean_text

LONGEST_KEY = 256
LONGEST_ERROR = 2_000
_LONGEST_TYPE = 100
_SHORTEST_LIFE = timedelta(milliseconds=1)
_LONGEST_LIFE = timedelta(days=36_500)
# NUL and lone surrogates: no PostgreSQL text holds them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
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

    A live claim is shown before a completed record, and that before a failure. `mark` is the claim's or the completed
    record's. A completed record with an `error`: a later mark failed.
    """

    status: Status
    result: str | None = None
    error: str | None = None
    mark: int | None = None


class Store(Protocol):
    """Decides atomically; every method raises RetryableError if the store is out of reach, and may then be repeated.

    Times to live are between a millisecond and a hundred years; what is outside counts as the nearest of the two.
    """

    def check(self, key: Key, ttl: timedelta) -> Check:
        """Claim the key for `ttl` unless it is completed or claimed. Of any number of callers at once one gets New.

        A completed record comes before a claim: while version 3 is in progress, version 2 is still a duplicate of 2.
        """

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """Complete the key; for `ttl` from now every check finds a Duplicate with `result`.

        LeaseLostError, and nothing is changed, if the key was taken (see the module). To say it twice is to say it
        once: the same claim's second result is ignored. BadRequestError for a result with NUL or lone surrogates.
        """

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """Give the key back, so that the next check finds it new; the error may be looked up for `ttl`.

        An older completed mark stays completed. Changes nothing if the key was taken. Of the error only what every
        store can hold is kept: its first 2,000 characters, without NUL and lone surrogates.
        """

    def get_result(self, key: Key) -> Record | None:
        """What is known of the key, whatever the mark asked with. Decides nothing."""

    def cleanup(self) -> int:
        """Delete what has expired, as much as is good for one call, unless the store does so by itself; how much."""


def lifetime(ttl: timedelta) -> timedelta:
    """A time to live that every store can count with; `timedelta.max` means as long as possible."""
    return min(max(ttl, _SHORTEST_LIFE), _LONGEST_LIFE)


def storable_result(result: str | None) -> str | None:
    """`result`, if every store can give it back unchanged."""
    if result is not None and _UNSTORABLE.search(result):
        raise BadRequestError("a result must not contain NUL or lone surrogates; JSON with escapes has none")
    return result


def storable_error(error: str) -> str:
    """What every store can hold of an error's text."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", error[:LONGEST_ERROR])


def taken() -> LeaseLostError:
    """The error of a holder whose key was taken."""
    return LeaseLostError("somebody else has the key, or has completed it")
