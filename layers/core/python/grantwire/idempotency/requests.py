"""What an API Gateway request says about its idempotency: the key, the hash of its fields, and the settings.

The types that the guard works with are the library's: `RequestIdentity`, `StoredResponse`, `raise_for_outcome`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING

from grantwire.errors import BadRequestError
from grantwire.settings import duration, setting
from grantwire_idempotency.requests import GuardSettings, RequestIdentity, StoredResponse, raise_for_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

__all__ = ["IdempotencySettings", "RequestIdentity", "StoredResponse", "parse_key", "raise_for_outcome", "request_hash"]

_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")
_LONGEST_KEY = 255
_CANONICAL_FORM = "v1"


@dataclass(frozen=True, slots=True)
class IdempotencySettings(GuardSettings):
    """The guard's settings, read from the environment."""

    ttl: timedelta = setting("IDEMPOTENCY_TTL", duration(low="1s"), default="24h")
    lock_wait: timedelta = setting("IDEMPOTENCY_LOCK_WAIT", duration(low="1ms", high="20s"), default="2s")


def parse_key(values: Sequence[str]) -> str:
    """The one Idempotency-Key of a request, given every value of that header.

    A proxy may fold a repeated header into one value joined by ", ", which is why no key may contain that.
    """
    key = values[0].strip() if values else ""
    if len(values) > 1 or ", " in key:
        raise BadRequestError("send exactly one Idempotency-Key header")
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
