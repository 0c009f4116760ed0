"""What identifies a guarded request, and the response that is kept for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from grantwire_idempotency.errors import KeyConflictError, RequestInProgressError


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How long a response is kept (I4), and how long a request waits for another with the same key (I8)."""

    ttl: timedelta = timedelta(hours=24)
    lock_wait: timedelta = timedelta(seconds=2)


class RequestIdentity(NamedTuple):
    """Whose request it is, what it asks for, and the key under which its answer is kept (I7)."""

    caller: str
    route: str
    key: str
    request_hash: str


class StoredResponse(NamedTuple):
    """An answer that is final for its key: sent now, and byte for byte again to every repeat."""

    status_code: int
    body: str
    outcome: str = "APPLIED"

    @property
    def final(self) -> bool:
        """Whether it may be kept: a malformed request (400) or a fault (5xx) must be able to run again (I3)."""
        return 200 <= self.status_code < 300 or 400 < self.status_code < 500  # noqa: PLR2004 - HTTP's own numbers

    @property
    def replayed(self) -> bool:
        """Whether this is the answer to an earlier request with the same key."""
        return self.outcome == "REPLAYED"


def refuse(outcome: str) -> None:
    """Raise what an outcome means that is no answer: the key is another request's, or its request still runs."""
    if outcome == KeyConflictError.code:
        raise KeyConflictError("this Idempotency-Key was used for another request; use a new key")
    if outcome == RequestInProgressError.code:
        raise RequestInProgressError("a request with this Idempotency-Key is still running")
