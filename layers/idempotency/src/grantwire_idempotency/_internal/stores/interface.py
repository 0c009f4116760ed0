"""The store interface. A store is the only component that decides whether a key is new.

A store keeps up to three entries for a key, and each entry has its own time to live:

- a *claim*: a run is working on the key;
- a *completion*: the work is done, and this is its result;
- a *failure*: the last run ended with this error. A failure is information only and never affects a decision.

    check          no live claim and no live completion ────▶ Claim        the key is claimed atomically
                   a completion at this mark or a later one ▶ Duplicate    with the stored result
                   a live claim of another run ─────────────▶ InProgress
    store_result   replaces the claim and any failure by a completion
    store_failure  replaces the claim by a failure, so that the next check returns Claim

Two concurrent checks never both return Claim. A worker that dies leaves its claim behind, and the claim expires.

The token of a claim identifies the run. A check that is repeated with the same token returns the claim again, so one
whose response was lost does not block its key. Each claim has a *fencing number*, which is higher than that of every
earlier claim on the key; it is 0 if the store draws none.

A key can have a *content hash*: a hash of what the run was called with. The store keeps it with the claim and with the
completion, and returns it to a check of the same mark. It does not compare it; `require_same_content` does.

A claim is *lost* when another run has a live claim on the same key, or when a completion makes the key a duplicate.
Only a live claim can be completed: one that has expired cannot, even if no other run has claimed the key since.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.foundation.validation import clean_text
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, LeaseLostError

MAX_KEY_LENGTH = 256
MAX_ERROR_LENGTH = 2_000
# Rows that one `cleanup` deletes: few enough for a statement timeout.
CLEANUP_BATCH = 1_000
_MAX_TYPE_LENGTH = 100
# Between the two calls that claim and complete a key whose work is done.
MARK_LEASE = timedelta(seconds=30)
_MIN_TTL = timedelta(milliseconds=1)
_MAX_TTL = timedelta(days=36_500)
# NUL and lone surrogates, which PostgreSQL cannot store in a text column.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONTENT_HASH = re.compile(r"[0-9A-Za-z._-]{0,100}")
# Redis compares marks as floating-point numbers, which are exact up to here. As microseconds, this is the year 2255.
MAX_MARK = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """The identity of a message: two messages with the same key are the same message.

    A `mark` orders the messages that share a key. It is a version, or a time in microseconds. Only a mark above the
    last completed mark is new. `message_id` and `message_type` are stored for people who inspect the store.
    `content_hash` is a hash of the message. If a run had the key with another one, its use is a KeyConflictError.

    Raises BadRequestError for a value that any of the stores could not hold.
    """

    value: str
    mark: int | None = None
    message_id: str = ""
    message_type: str = ""
    content_hash: str = ""

    def __post_init__(self) -> None:
        """Validate all fields."""
        clean_text("idempotency key", self.value, max_length=MAX_KEY_LENGTH)
        if self.mark is not None and (isinstance(self.mark, bool) or not isinstance(self.mark, int)):
            raise BadRequestError("mark must be an integer")
        if self.mark is not None and not 0 <= self.mark <= MAX_MARK:
            raise BadRequestError(f"mark must be between 0 and {MAX_MARK}, not {self.mark}")
        if self.message_id:
            clean_text("message id", self.message_id, max_length=MAX_KEY_LENGTH)
        if self.message_type:
            clean_text("message type", self.message_type, max_length=_MAX_TYPE_LENGTH)
        if not _is_content_hash(self.content_hash):
            raise BadRequestError("content hash must have at most 100 letters, digits, dots, dashes and underscores")

    def scoped(self, name: str) -> Key:
        """Return the key of the job `name`, which must be a valid name: nothing is validated again."""
        key = object.__new__(Key)
        object.__setattr__(key, "value", f"{escape(name)}:{self.value}")
        object.__setattr__(key, "mark", self.mark)
        object.__setattr__(key, "message_id", self.message_id)
        object.__setattr__(key, "message_type", name)
        object.__setattr__(key, "content_hash", self.content_hash)
        return key

    def is_covered_by(self, completed_mark: int | None) -> bool:
        """Return whether a completion with this mark makes the key a duplicate.

        If either of the two has no mark, it does.
        """
        return self.mark is None or completed_mark is None or self.mark <= completed_mark


@dataclass(frozen=True, slots=True)
class Claim:
    """Exclusive permission to work on a new key. Pass it to `store_result` or `store_failure` after the work.

    `fence` is the fencing number: higher than that of every earlier claim on the key. Write it with the effect, under a
    condition such as `WHERE fence < %s`, and a worker that was paused past its claim cannot overwrite a later one.
    It is 0 if the store draws none (`RedisStore` without `fences=True`).
    `last_error` is the live failure of the key, if there is one.
    """

    key: Key
    token: str = field(default_factory=lambda: os.urandom(16).hex())
    fence: int = field(default=0, compare=False)
    last_error: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The work is already done; `result` is the stored result, or None.

    The content hash is that of the run that did it, if it had the same mark.
    """

    key: Key
    result: str | None
    content_hash: str = ""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run has claimed the key; its claim expires after `free_in` at the latest.

    The content hash is that of the other run, if it had the same mark.
    """

    key: Key
    free_in: timedelta
    content_hash: str = ""


CheckResult = Claim | Duplicate | InProgress


class KeyStatus(StrEnum):
    """The status of a key in a store."""

    IN_PROGRESS = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeyState:
    """A snapshot of what a store knows about a key. It can be out of date as soon as it is returned.

    A live claim takes precedence over a completion, and a completion over a failure. `mark` and `content_hash` are
    those of the claim or of the completion. A completion with an `error` means that a run with a later mark has failed.
    """

    status: KeyStatus
    result: str | None = None
    error: str | None = None
    mark: int | None = None
    content_hash: str = ""


class Store(Protocol):
    """Claims keys atomically and keeps their results.

    Every method raises RetryableError if the store is unavailable, and it is safe to call the method again with the
    same arguments. A time to live below one millisecond or above one hundred years is replaced by that limit. A store
    can have an attribute `fail_mode`, which is the default of the wrappers and consumers that use it.
    """

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Claim the key for `ttl`, unless it is completed or claimed. Of all concurrent callers one gets a Claim.

        A completion takes precedence over a claim: while version 3 is in progress, version 2 is still a duplicate if
        version 2 is completed. `token` identifies the run: a second check with the token of a live claim claims the key
        again. Without it, a random token is used.
        """

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Complete the key: for `ttl` from now, every check returns a Duplicate with `result`.

        If the key has a mark, it stays completed for `order_ttl`, if that is longer. A check in that additional time
        returns a Duplicate without a result. A second call with the same claim has no effect. Raises LeaseLostError and
        changes nothing if the claim has expired or is lost (see the module). Raises BadRequestError if the result
        contains NUL or lone surrogates.
        """

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """Release the key, so that the next check claims it, and keep `error` for `ttl`.

        A completion with an older mark remains. Changes nothing if the claim is lost. The store keeps the first 2,000
        characters of the error and replaces NUL and lone surrogates.
        """

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """Let the claim expire `ttl` from now. Raises LeaseLostError if it has already expired or is lost."""

    def get_result(self, key: Key) -> KeyState | None:
        """Return the state of the key, or None if the store does not know it. Ignores the mark of `key`.

        The state is for information. Only `check` decides whether to do the work.
        """

    def cleanup(self) -> int:
        """Delete expired entries and return how many were deleted.

        One call deletes a limited number. A store that deletes expired entries automatically returns 0.
        """


class AsyncStore(Protocol):
    """A store for asyncio: the methods and guarantees of `Store`, as coroutines."""

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""

    async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""

    async def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""

    async def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""

    async def cleanup(self) -> int:
        """See `Store`."""


def require_same_content(check: CheckResult) -> None:
    """Raise KeyConflictError if the key was used with other content. Without a hash on both sides, nothing is known."""
    own, stored = check.key.content_hash, "" if isinstance(check, Claim) else check.content_hash
    if own and stored and own != stored:
        raise KeyConflictError("this idempotency key was used with other arguments; use a new key")


def _is_content_hash(value: object) -> bool:
    return isinstance(value, str) and bool(_CONTENT_HASH.fullmatch(value))


def new_claim(key: Key, token: str | None) -> Claim:
    """Return a claim with this token, or with a random one."""
    return Claim(key) if token is None else Claim(key, token)


def completion_ttl(key: Key, ttl: timedelta, order_ttl: timedelta | None) -> timedelta:
    """Return how long the key stays completed: with a mark, for `order_ttl` if that is longer."""
    return clamp_ttl(ttl if key.mark is None or order_ttl is None else max(ttl, order_ttl))


def clamp_ttl(ttl: timedelta) -> timedelta:
    """Limit a time to live to the range that every store supports; `timedelta.max` means as long as possible."""
    return min(max(ttl, _MIN_TTL), _MAX_TTL)


def validate_result(result: str | None) -> str | None:
    """Return `result`; raise BadRequestError if a store could not return it unchanged."""
    if result is not None and _UNSTORABLE.search(result):
        raise BadRequestError("a result must not contain NUL or lone surrogates; JSON with escapes has none")
    return result


def truncate_error(error: str) -> str:
    """Return the part of an error text that every store can hold."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", error[:MAX_ERROR_LENGTH])


def claim_lost_error() -> LeaseLostError:
    """Return the error for a claim that is lost."""
    return LeaseLostError("the claim is lost: it has expired, or another run has claimed or completed the key")
