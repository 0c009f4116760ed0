"""The errors of the library: two base classes that say whether to retry, and the specific errors.

    GrantwireError
    ├── RetryableError             nothing was committed; retry later
    │   ├── RequestInProgressError another request with the key is running
    │   ├── LockHeldError          another owner holds the lock
    │   ├── AmbiguousError         unknown whether it was committed; repeat with the same key
    │   ├── LeaseLostError         another worker has the work; change nothing
    │   ├── BusyError              no connection is free; the server may be healthy and was not asked
    │   └── CircuitOpenError       the server failed repeatedly and was not called
    ├── RejectedError              do not retry without a change
    │   ├── BadRequestError        BAD_REQUEST
    │   ├── DeadLetteredError      the dead-letter hook has taken the message before
    │   └── KeyConflictError       IDEMPOTENCY_KEY_CONFLICT
    ├── InternalError              a bug or a broken invariant
    └── ConfigError                invalid wiring or settings; lists every problem

Callers decide by RetryableError and RejectedError alone. The specific classes say what happened. The entitlement
service adds its own errors to this tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class GrantwireError(Exception):
    """Root of all errors that the library and the service raise on purpose."""


class RetryableError(GrantwireError):
    """Nothing was committed, or a repeat is safe: retry after `retry_after` seconds."""

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
    """The change may or may not be committed; a repeat with the same identifier is safe."""


class LeaseLostError(RetryableError):
    """The lease expired before the work was finished."""


class BusyError(RetryableError):
    """The server was not asked, because there was no free connection: a shortage of the caller, not an outage.

    Work never runs unguarded because of it, because other runs of the process may hold its key.
    """


class CircuitOpenError(RetryableError):
    """The server was not called, because the last calls failed."""


class RejectedError(GrantwireError):
    """The request is invalid; the same request will be rejected again."""

    code: ClassVar[str] = "BAD_REQUEST"


class BadRequestError(RejectedError):
    """The request is malformed; the message names the field and the rule."""


class DeadLetteredError(RejectedError):
    """The message is already a dead letter; the text is the error of its last attempt."""


class KeyConflictError(RejectedError):
    """The idempotency key was used for another request."""

    code = "IDEMPOTENCY_KEY_CONFLICT"


class InternalError(GrantwireError):
    """A bug, or a broken invariant."""


class ConfigError(GrantwireError):
    """The settings or the wiring are incomplete or contradictory; `problems` lists every problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("bad configuration: " + "; ".join(problems))
        self.problems: tuple[str, ...] = tuple(problems)
