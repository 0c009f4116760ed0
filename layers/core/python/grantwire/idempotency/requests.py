"""The idempotency key of an API request, and the settings.

`RequestIdentity`, `StoredResponse`, `raise_for_outcome` and `request_hash` come from the library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grantwire.errors import BadRequestError
from grantwire.settings import duration, setting
from grantwire_idempotency import GuardSettings, RequestIdentity, StoredResponse, raise_for_outcome, request_hash

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

__all__ = [
    "IdempotencySettings",
    "RequestIdentity",
    "StoredResponse",
    "parse_item_key",
    "parse_key",
    "raise_for_outcome",
    "request_hash",
]

_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")
_MAX_KEY_LENGTH = 255


@dataclass(frozen=True, slots=True)
class IdempotencySettings(GuardSettings):
    """The settings of the guard, read from the environment."""

    ttl: timedelta = setting("IDEMPOTENCY_TTL", duration(low="1s"), default="24h")
    lock_wait: timedelta = setting("IDEMPOTENCY_LOCK_WAIT", duration(low="1ms", high="20s"), default="2s")


def parse_key(values: Sequence[str]) -> str:
    """Return the idempotency key, given all values of the Idempotency-Key header of one request.

    Raise BadRequestError if there is not exactly one valid key. A key must not contain ", ", because a proxy may join
    the values of a repeated header with it. HTTP servers remove white space around a header's value, so white space
    that is left is part of the key, and is refused.
    """
    key = values[0] if values else ""
    if len(values) > 1 or ", " in key:
        raise BadRequestError("Idempotency-Key header must be sent exactly once")
    if not key.strip():
        raise BadRequestError("Idempotency-Key header is missing; send a UUID or the purchase_id")
    return _check_key("Idempotency-Key", key)


def parse_item_key(value: object) -> str:
    """Return the idempotency key of an item of a batch: any key that a single request could have in its header.

    Raise BadRequestError for anything else.
    """
    if not isinstance(value, str):
        raise BadRequestError("idempotency_key must be a string")
    if not value.strip():
        raise BadRequestError("idempotency_key must not be empty; send a UUID or the purchase_id")
    if ", " in value:
        raise BadRequestError("idempotency_key must not contain a comma before a space")
    return _check_key("idempotency_key", value)


def _check_key(name: str, key: str) -> str:
    if len(key) > _MAX_KEY_LENGTH:
        raise BadRequestError(f"{name} must have at most {_MAX_KEY_LENGTH} characters")
    if not _PRINTABLE_ASCII.fullmatch(key):
        raise BadRequestError(f"{name} must contain only printable ASCII characters")
    if key != key.strip():
        raise BadRequestError(f"{name} must not begin or end with white space")
    return key
