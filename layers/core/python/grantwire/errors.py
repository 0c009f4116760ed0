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
    │   └── SystemFaultError       PostgreSQL refuses every statement like this one: wait, and alarm
    └── ConfigError                fails the init phase, naming every missing or bad variable at once

The message of a RejectedError or RetryableError is written for the caller; the other two are for the people on call.
What the idempotency library raises is defined there and handed on here; the service adds what only it can raise.
"""

from __future__ import annotations

from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    CircuitOpenError,
    ConfigError,
    GrantwireError,
    InternalError,
    KeyConflictError,
    LeaseLostError,
    LockHeldError,
    RejectedError,
    RequestInProgressError,
    RetryableError,
)

__all__ = [
    "AmbiguousError",
    "BadRequestError",
    "CircuitOpenError",
    "ConfigError",
    "ForbiddenError",
    "GrantwireError",
    "InternalError",
    "KeyConflictError",
    "LeaseLostError",
    "LockHeldError",
    "MethodNotAllowedError",
    "NotFoundError",
    "RejectedError",
    "RequestInProgressError",
    "RetryableError",
    "SystemFaultError",
    "TooLargeError",
    "UnauthenticatedError",
]


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


class SystemFaultError(InternalError):
    """The system is at fault and not the data: schema, privileges, credentials, the server. Workers wait and alarm."""
