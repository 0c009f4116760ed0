"""What identifies a request, and the answer that is kept for it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, NamedTuple

from grantwire.errors import BadRequestError, KeyConflictError, RequestInProgressError
from grantwire.settings import duration, setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")
_LONGEST_KEY = 255
_CANONICAL_FORM = "v1"


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """How long an answer is kept (I4), and how long a request waits for another with the same key (I8)."""

    ttl: timedelta = setting("IDEMPOTENCY_TTL", duration(low="1s"), default="24h")
    lock_wait: timedelta = setting("IDEMPOTENCY_LOCK_WAIT", duration(low="1ms", high="20s"), default="2s")


class RequestIdentity(NamedTuple):
    """Whose request it is, what it asks for, and the key under which its answer is kept (I7)."""

    caller: str
    route: str
    key: str
    request_hash: str


class Answer(NamedTuple):
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


def parse_key(values: Sequence[str]) -> str:
    """The one Idempotency-Key of a request, given every value of that header.

    A proxy may fold a repeated header into one value joined by ", ", which is why no key may contain that.
    """
    if len(values) > 1 or any(", " in value for value in values):
        raise BadRequestError("send exactly one Idempotency-Key header")
    key = values[0].strip() if values else ""
    if not key:
        raise BadRequestError("the Idempotency-Key header is required: a UUID, or the purchase_id")
    if len(key) > _LONGEST_KEY:
        raise BadRequestError(f"Idempotency-Key must have at most {_LONGEST_KEY} characters")
    if not _PRINTABLE_ASCII.fullmatch(key):
        raise BadRequestError("Idempotency-Key must be printable ASCII")
    return key


def request_hash(fields: Mapping[str, str]) -> str:
    """The same for two requests that ask for the same: SHA-256 of a canonical form, with that form's version.

    The canonical form is JSON with sorted members and no white space. The fields are hashed as parsed, not as sent:
    order and white space do not make another request.
    """
    members = ",".join([f"{quoted(name)}:{quoted(fields[name])}" for name in sorted(fields)])
    digest = hashlib.sha256(f"{_CANONICAL_FORM}\n{{{members}}}".encode()).hexdigest()
    return f"{_CANONICAL_FORM}:{digest}"
