"""The errors of the library: two classes that say whether to retry, and the specific ones that it raises.

    GrantwireError
    ├── RetryableError             nothing was committed; try again later
    │   ├── RequestInProgressError the key is held by a request that still runs
    │   ├── LockHeldError          the lock was not free in time
    │   ├── AmbiguousError         not known whether it happened; repeat it with the same key
    │   ├── LeaseLostError         another worker has the work now; touch nothing
    │   └── CircuitOpenError       a server keeps failing and was not called
    ├── RejectedError              never retry as it is
    │   ├── BadRequestError        BAD_REQUEST
    │   └── KeyConflictError       IDEMPOTENCY_KEY_CONFLICT
    ├── InternalError              a bug or a broken invariant
    └── ConfigError                wrong wiring or settings, with every problem at once

RetryableError and RejectedError are the policy: a caller decides by these two classes alone. The specific classes say
what happened. The entitlement service adds its own errors to the same tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class GrantwireError(Exception):
    """Root of all errors that the library and the service raise on purpose."""


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
    """Another owner holds the lock."""


class AmbiguousError(RetryableError):
    """It may or may not have happened; a repeat with the same identifier is harmless."""


class LeaseLostError(RetryableError):
    """The lease ran out before the work was finished."""


class CircuitOpenError(RetryableError):
    """The server was not called, because it failed repeatedly a moment ago."""


class RejectedError(GrantwireError):
    """The request is at fault and will be refused again as it is."""

    code: ClassVar[str] = "BAD_REQUEST"


class BadRequestError(RejectedError):
    """The request is malformed; the message names the part and the rule."""


class KeyConflictError(RejectedError):
    """The idempotency key belongs to another request."""

    code = "IDEMPOTENCY_KEY_CONFLICT"


class InternalError(GrantwireError):
    """A bug, or an invariant that does not hold."""


class ConfigError(GrantwireError):
    """The settings or the wiring are incomplete or contradict each other; `problems` lists all of it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("bad configuration: " + "; ".join(problems))
        self.problems = tuple(problems)
