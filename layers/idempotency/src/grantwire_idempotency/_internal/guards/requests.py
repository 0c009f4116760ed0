"""The identity of a guarded request, and its stored response."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TTL
from grantwire_idempotency._internal.foundation.validation import clean_text
from grantwire_idempotency.errors import (
    BadRequestError,
    InternalError,
    KeyConflictError,
    RequestInProgressError,
)

if TYPE_CHECKING:
    from typing import Self

_MAX_KEY_LENGTH = 255
_MAX_NAME_LENGTH = 512
_CANONICAL_FORM_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How long a response is stored (I4), and how long a request waits for another one with the same key (I8)."""

    ttl: timedelta = DEFAULT_TTL
    lock_wait: timedelta = timedelta(seconds=2)


class RequestIdentity(NamedTuple):
    """The caller, the route and the key that identify a request, and the hash of its content (I7)."""

    caller: str
    route: str
    key: str
    request_hash: str

    @classmethod
    def create(cls, caller: str, route: str, key: str, fields: Any) -> Self:
        """Return the identity of a request that did not come through API Gateway.

        `caller` is the authenticated user or client: two callers never share a key. `route` is the operation, such as
        "POST /orders". `key` is what the client sent as Idempotency-Key. `fields` is the parsed request, any JSON: a
        second request with the same key and other fields is refused. Raises BadRequestError for an invalid part.
        """
        return cls(
            clean_text("caller", caller, max_length=_MAX_NAME_LENGTH),
            clean_text("route", route, max_length=_MAX_NAME_LENGTH),
            clean_text("Idempotency-Key", key, max_length=_MAX_KEY_LENGTH),
            request_hash(fields),
        )


class StoredResponse(NamedTuple):
    """A response that is stored with its key; every repeat gets the same status and body, byte for byte."""

    status_code: int
    body: str
    outcome: str = "APPLIED"

    @property
    def is_final(self) -> bool:
        """Whether the response may be stored. A request with status 400 or 5xx must be able to run again (I3)."""
        return 200 <= self.status_code < 400 or 400 < self.status_code < 500  # noqa: PLR2004 - HTTP's own numbers

    @property
    def is_valid(self) -> bool:
        """Whether the status is one that ends a request."""
        return type(self.status_code) is int and 200 <= self.status_code < 600  # noqa: PLR2004 - as above

    @property
    def replayed(self) -> bool:
        """Whether this response was stored by an earlier request with the same key."""
        return self.outcome == "REPLAYED"


def require_identity(identity: object) -> None:
    """Raise InternalError if a caller passes anything else than a RequestIdentity, such as the request itself."""
    if not isinstance(identity, RequestIdentity):
        raise InternalError(
            "a request must be a RequestIdentity: write RequestIdentity.create(caller, route, key, fields), not a"
            f" {type(identity).__name__}"
        )


def require_response(response: object) -> StoredResponse:
    """Return the response of guarded work; raise InternalError for anything that cannot be one."""
    if not isinstance(response, StoredResponse):
        raise InternalError(f"guarded work must return a StoredResponse, not {type(response).__name__}")
    if not response.is_valid:
        raise InternalError(f"guarded work must return a status of 200 to 599, not {response.status_code!r}")
    if not isinstance(response.body, str):
        raise InternalError(
            "the body of a StoredResponse must be text: write StoredResponse(status, json.dumps(body)), not a"
            f" {type(response.body).__name__}"
        )
    return response


def raise_for_outcome(outcome: str) -> None:
    """Raise KeyConflictError or RequestInProgressError if the outcome is one of these; else do nothing."""
    if outcome == KeyConflictError.code:
        raise KeyConflictError("this Idempotency-Key was used for another request; use a new key")
    if outcome == RequestInProgressError.code:
        raise RequestInProgressError("a request with this Idempotency-Key is still running")


def request_hash(fields: Any) -> str:
    """Return the SHA-256 of the request's canonical form, prefixed with the version of that form.

    Equal fields have equal hashes. The fields can be any JSON. The canonical form is JSON with sorted keys and without
    white space. It is made from the parsed fields, so key order and white space in the request body do not matter. 5
    and 5.0 differ, as 5 and "5" do. Raises BadRequestError for a value that is not JSON.
    """
    try:
        members = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        digest = hashlib.sha256(f"{_CANONICAL_FORM_VERSION}\n{members}".encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the request can contain only JSON values: {error}") from None
    return f"{_CANONICAL_FORM_VERSION}:{digest}"
