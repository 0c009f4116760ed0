"""Retries of a message in a consumer (C12)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.backoff import Backoff
from grantwire_idempotency._internal.foundation.steps import original
from grantwire_idempotency._internal.foundation.wiring import require
from grantwire_idempotency.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Steps

_DEFAULT_BACKOFF = Backoff(timedelta(seconds=1), timedelta(seconds=60), timedelta(0), 0.5, 1.5)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts, the backoff between them, and the errors that are not retried.

    A RejectedError is never retried; `permanent_errors` are further errors of that kind.
    All attempts are made while the message is claimed. No attempt starts that could outlast the claim.
    Raises ConfigError with every invalid field.
    """

    max_attempts: int = 3
    backoff: Backoff = _DEFAULT_BACKOFF
    permanent_errors: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        """Validate all fields."""
        require(
            (
                type(self.max_attempts) is int and self.max_attempts >= 1,
                "max_attempts must be an integer of at least 1",
            ),
            (isinstance(self.backoff, Backoff), "backoff must be a Backoff"),
            (_are_errors(self.permanent_errors), "permanent_errors must be a tuple of subclasses of Exception"),
        )


def _are_errors(types: object) -> bool:
    return isinstance(types, tuple) and all(isinstance(one, type) and issubclass(one, Exception) for one in types)


@dataclass(slots=True)
class RetryLoop:
    """The attempts at one message, which end at `deadline` on `clock`.

    After a failure, `error` is the error of the last attempt. `is_final` is false if only the deadline prevented
    another attempt.
    """

    policy: RetryPolicy
    deadline: float
    clock: Callable[[], float]
    sleep: Callable[[float], Any]
    rand: Callable[[], float]
    logger: LibraryLogger
    attempts: int = 0
    error: Exception | None = None
    is_final: bool = False

    def run(self, work: Callable[[], Steps[Any]], fields: Mapping[str, Any]) -> Steps[Any]:
        """Return the result of the first attempt that succeeds, or raise the error of the last one.

        The log line of each failed attempt contains `fields`.
        """
        while True:
            self.attempts += 1
            started = self.clock()
            try:
                return (yield from work())
            except Exception as error:
                now = self.clock()
                delay = self.policy.backoff.delay(self.attempts, self.rand).total_seconds()
                self.is_final = self.attempts >= self.policy.max_attempts or isinstance(
                    original(error), (RejectedError, *self.policy.permanent_errors)
                )
                # Assume that the next attempt takes as long as this one.
                if self.is_final or now + delay + (now - started) >= self.deadline:
                    self.error = error
                    raise
                log_fields = {**fields, "attempt": self.attempts, "error": type(original(error)).__name__}
                logger = self.logger
                logger.warning("attempt failed, retrying", extra=log_fields)
            yield partial(self.sleep, delay)
