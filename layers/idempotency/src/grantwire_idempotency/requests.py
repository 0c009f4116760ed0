"""The identity of a guarded request, and its stored response."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from grantwire_idempotency.errors import KeyConflictError, RequestInProgressError


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How long a response is stored (I4), and how long a request waits for another one with the same key (I8)."""

    ttl: timedelta = timedelta(hours=24)
    lock_wait: timedelta = timedelta(seconds=2)


class RequestIdentity(NamedTuple):
    """The caller, the route and the key that identify a request, and the hash of its content (I7)."""

    caller: str
    route: str
    key: str
    request_hash: str


class StoredResponse(NamedTuple):
    """A response that is stored with its key; every repeat gets the same status and body, byte for byte."""

    status_code: int
    body: str
    outcome: str = "APPLIED"

    @property
    def is_final(self) -> bool:
        """Whether the response may be stored. A request with status 400 or 5xx must be able to run again (I3)."""
        return 200 <= self.status_code < 300 or 400 < self.status_code < 500  # noqa: PLR2004 - HTTP's own numbers

    @property
    def replayed(self) -> bool:
        """Whether this response was stored by an earlier request with the same key."""
        return self.outcome == "REPLAYED"


def raise_for_outcome(outcome: str) -> None:
    """Raise KeyConflictError or RequestInProgressError if the outcome is one of these; else do nothing."""
    if outcome == KeyConflictError.code:
        raise KeyConflictError("this Idempotency-Key was used for another request; use a new key")
    if outcome == RequestInProgressError.code:
        raise RequestInProgressError("a request with this Idempotency-Key is still running")
