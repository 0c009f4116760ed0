"""The errors that cross module boundaries, and how entry points handle each class.

    GrantwireError
    ├── RetryableError             nothing was committed; try again later   (503 + Retry-After · redelivery · next run)
    │   ├── RequestInProgressError another request with this key is still running                (409 + Retry-After)
    │   ├── RateLimitedError       the caller has no tokens left                                 (429 + Retry-After)
    │   ├── LockHeldError          the lock could not be acquired in time
    │   ├── AmbiguousError         the outcome is unknown; repeat with the same id
    │   ├── LeaseLostError         another worker has the rows; change nothing, continue with other work
    │   ├── ReceiverBusyError      the receiver said with Retry-After when to call it again
    │   ├── CircuitOpenError       a dependency keeps failing and was not called
    │   └── TopologyError          a stream or consumer of NATS is missing or differs
    ├── RejectedError              never succeeds unchanged; do not retry   (4xx with code · TERM · log and continue)
    │   ├── BadRequestError        BAD_REQUEST
    │   ├── TooLargeError          TOO_LARGE
    │   ├── UnauthenticatedError   UNAUTHENTICATED
    │   ├── ForbiddenError         FORBIDDEN
    │   ├── NotFoundError          NOT_FOUND
    │   ├── MethodNotAllowedError  METHOD_NOT_ALLOWED
    │   ├── GoneError              GONE
    │   ├── NotAppliedError        NOT_APPLIED
    │   ├── KeyConflictError       IDEMPOTENCY_KEY_CONFLICT
    │   └── ClientExistsError      CLIENT_EXISTS
    ├── InternalError              a bug or a broken invariant: logged, details never sent to a caller    (500)
    │   └── SystemFaultError       PostgreSQL rejects every statement of this kind: wait and raise an alarm
    └── ConfigError                fails the init phase; one error names every missing or invalid variable

The messages of RejectedError and RetryableError are written for callers, the others for the engineer on call.
Errors that the idempotency library raises are defined there and re-exported here. This module adds the errors that
only the service raises.
"""

from __future__ import annotations

from typing import Final

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
    "ClientExistsError",
    "ConfigError",
    "ForbiddenError",
    "GoneError",
    "GrantwireError",
    "InternalError",
    "KeyConflictError",
    "LeaseLostError",
    "LockHeldError",
    "MethodNotAllowedError",
    "NotAppliedError",
    "NotFoundError",
    "RateLimitedError",
    "ReceiverBusyError",
    "RejectedError",
    "RequestInProgressError",
    "RetryableError",
    "SystemFaultError",
    "TooLargeError",
    "TopologyError",
    "UnauthenticatedError",
]


class TopologyError(RetryableError):
    """A stream or consumer of NATS is missing or differs. The status recognises it by its text in a heartbeat."""

    PREFIX: Final = "NATS topology: "

    def __init__(self, problems: str) -> None:
        super().__init__(f"{self.PREFIX}{problems}")


class TooLargeError(RejectedError):
    """The request is larger than the limit."""

    code = "TOO_LARGE"


class RateLimitedError(RetryableError):
    """The caller sent more requests than its limits allow."""

    code = "RATE_LIMITED"


class ReceiverBusyError(RetryableError):
    """The receiver of notifications refused one, and said when to send it again."""


class UnauthenticatedError(RejectedError):
    """The request has no authenticated caller."""

    code = "UNAUTHENTICATED"


class ForbiddenError(RejectedError):
    """The caller is authenticated but lacks the required scope."""

    code = "FORBIDDEN"


class NotFoundError(RejectedError):
    """The path does not exist."""

    code = "NOT_FOUND"


class MethodNotAllowedError(RejectedError):
    """The path exists but does not support the method; `allowed` is the method that it supports."""

    code = "METHOD_NOT_ALLOWED"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"method not allowed, use {allowed}")
        self.allowed = allowed


class GoneError(RejectedError):
    """The cursor is no longer valid; the caller must begin again."""

    code = "GONE"


class NotAppliedError(RejectedError):
    """The item belongs to an atomic batch in which another item was refused."""

    code = "NOT_APPLIED"


class ClientExistsError(RejectedError):
    """A client with the same name exists that was not revoked."""

    code = "CLIENT_EXISTS"


class SystemFaultError(InternalError):
    """The cause is the system, not the data: the schema, privileges, credentials or the server.

    Workers wait, retry and raise an alarm; no row or message is marked as failed.
    """
