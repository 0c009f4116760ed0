"""Every error that crosses a module boundary, and what the entry points do about it.

    GrantwireError
    ├── RetryableError             nothing was committed; try again later   (503 + Retry-After · redelivery · next run)
    │   ├── RequestInProgressError the key is held by a request that still runs                  (409 + Retry-After)
    │   ├── LockHeldError          the lock was not free in time
    │   ├── AmbiguousError         not known whether it happened; repeat it with the same id
    │   ├── LeaseLostError         somebody else has the work now; touch nothing, go on with other work
    │   └── CircuitOpenError       a server keeps failing and was not asked
    ├── RejectedError              never retry as it is                     (4xx with code · TERM · log and go on)
    │   ├── BadRequestError        BAD_REQUEST
    │   ├── TooLargeError          TOO_LARGE
    │   ├── UnauthenticatedError   UNAUTHENTICATED
    │   ├── ForbiddenError         FORBIDDEN
    │   ├── NotFoundError          NOT_FOUND
    │   ├── MethodNotAllowedError  METHOD_NOT_ALLOWED
    │   └── KeyConflictError       IDEMPOTENCY_KEY_CONFLICT
    ├── InternalError              a bug or a broken invariant: loud, and never shown to a caller         (500)
    └── ConfigError                fails the init phase, naming every missing or bad variable at once

The message of a RejectedError or RetryableError is written for the caller; the other two are for the people on call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class GrantwireError(Exception):
    """Root of all errors that Grantwire raises on purpose."""


class RetryableError(GrantwireError):
    """Nothing was committed, or a repeat is harmless: try again after `retry_after` seconds."""

    code: ClassVar[str] = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestInProgressError(RetryableError):
    """Another request with the same key has not finished yet."""

    code = "REQUEST_IN_PROGRESS"


class LockHeldError(RetryableError):
    """Somebody else has the lock."""


class AmbiguousError(RetryableError):
    """It may have happened and may not; a repeat with the same identifier is harmless."""


class LeaseLostError(RetryableError):
    """The lease ran out before the work was finished."""


class CircuitOpenError(RetryableError):
    """The server was not asked, because it kept failing a moment ago."""


class RejectedError(GrantwireError):
    """The request is at fault and will be refused again as it is."""

    code: ClassVar[str] = "BAD_REQUEST"


class BadRequestError(RejectedError):
    """The request is malformed; the message names the part and the rule."""


class TooLargeError(RejectedError):
    """The request is larger than any valid one can be."""

    code = "TOO_LARGE"


class UnauthenticatedError(RejectedError):
    """It is not known who calls."""

    code = "UNAUTHENTICATED"


class ForbiddenError(RejectedError):
    """The caller is known, and may not do that."""

    code = "FORBIDDEN"


class NotFoundError(RejectedError):
    """There is nothing at this address."""

    code = "NOT_FOUND"


class MethodNotAllowedError(RejectedError):
    """The address exists, the method does not."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"use {allowed}")
        self.allowed = allowed


class KeyConflictError(RejectedError):
    """The idempotency key belongs to another request."""

    code = "IDEMPOTENCY_KEY_CONFLICT"


class InternalError(GrantwireError):
    """A bug, or an invariant that does not hold."""


class ConfigError(GrantwireError):
    """The environment is incomplete or contradicts itself."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("bad configuration: " + "; ".join(problems))
        self.problems = tuple(problems)
