"""How often a consumer tries a message before it gives up (C12)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency.backoff import Backoff
from grantwire_idempotency.errors import RejectedError
from grantwire_idempotency.logs import logger
from grantwire_idempotency.wiring import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_O4 = Backoff(timedelta(seconds=1), timedelta(seconds=60), timedelta(0), 0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Retry:
    """Up to `attempts` tries with `backoff` between them; an error of a `permanent` kind is not tried again.

    Attempts are made while the message is claimed, and end early when the time for it does.
    """

    attempts: int = 3
    backoff: Backoff = _O4
    permanent: tuple[type[Exception], ...] = (RejectedError,)

    def __post_init__(self) -> None:
        """Refuse what could not work: ConfigError, with every problem."""
        require(
            (type(self.attempts) is int and self.attempts >= 1, "attempts must be a whole number from 1"),
            (isinstance(self.backoff, Backoff), "backoff must be a Backoff"),
            (_are_errors(self.permanent), "permanent must be a tuple of kinds of Exception"),
        )


def _are_errors(kinds: object) -> bool:
    return isinstance(kinds, tuple) and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds)


@dataclass(slots=True)
class Attempts:
    """The attempts at one message: not beyond `until` by `clock`, and how they ended.

    After a failure `error` is the last one's, and `final` says whether it would be of no use to have more time.
    """

    retry: Retry
    until: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    rand: Callable[[], float]
    made: int = 0
    error: Exception | None = None
    final: bool = False

    def run(self, work: Callable[[], Any], fields: Mapping[str, Any]) -> Any:
        """What the first attempt that succeeds returns; else the last one's error is raised.

        `fields` go into the log line of each failed attempt.
        """
        while True:
            self.made += 1
            began = self.clock()
            try:
                return work()
            except Exception as error:
                now = self.clock()
                delay = self.retry.backoff.delay(self.made, self.rand).total_seconds()
                self.final = self.made >= self.retry.attempts or isinstance(error, self.retry.permanent)
                # Another one would take as long as this one, and must not outlive the claim.
                if self.final or now + delay + (now - began) >= self.until:
                    self.error = error
                    raise
                described = {**fields, "attempt": self.made, "error": type(error).__name__}
                logger.warning("attempt failed, retrying", extra=described)
            self.sleep(delay)
