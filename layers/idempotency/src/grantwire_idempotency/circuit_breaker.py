"""A circuit breaker: stop asking a server that keeps failing, and let one caller at a time find out whether it is back.

    closed ──`failures` in a row──▶ open ──after `rest`──▶ half-open: one trial ──answer──▶ closed
                                     ▲                                          └─failure─▶ open

Own code, because neither of the two maintained libraries fits: pybreaker holds a lock while the guarded call runs, so
that parallel senders take turns, and imports the Redis client where there is one; circuitbreaker lets every thread
through while half-open. Neither takes the time as an argument.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency.errors import (
    CircuitOpenError,
    ConfigError,
    GrantwireError,
    LeaseLostError,
    LockHeldError,
    RequestInProgressError,
    RetryableError,
)
from grantwire_idempotency.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

# To be tried again later, and yet the word of a server that is well.
_ANSWERS = (LeaseLostError, LockHeldError, RequestInProgressError)


class CircuitBreaker:
    """Counts how often in a row a server gave no answer; for any number of threads, which never wait for each other.

    No answer is a RetryableError, other than one that says who has the work. Every other error of Grantwire's is an
    answer, and so is success. Anything else, an interrupt or a bug, says nothing about the server: it neither counts
    nor closes. What began before the circuit opened or closed is too old to say anything about it either.

    While the circuit is open one trial begins in each `rest`, so a trial that hangs does not keep it open for ever.
    """

    def __init__(
        self, name: str, *, failures: int, rest: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failures < 1 or rest.total_seconds() <= 0:
            raise ConfigError([f"a circuit opens after 1 failure or more and rests for some time: {failures}, {rest}"])
        self.name = name
        self._threshold = failures
        self._rest = rest.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        # While open: when the next trial may begin. A trial in progress puts it off for everybody else.
        self._next_trial: float | None = None
        # How often it has opened or closed.
        self._era = 0

    @property
    def closed(self) -> bool:
        """Whether every call is let through."""
        return self._next_trial is None

    def open_for(self) -> float:
        """Seconds until a call may be tried; 0 if one may be tried now."""
        with self._lock:
            return 0.0 if self._next_trial is None else max(0.0, self._next_trial - self._clock())

    @contextmanager
    def guard(self, *, insist: bool = False) -> Iterator[None]:
        """Around one call; CircuitOpenError instead of the call while the circuit is open.

        With `insist` the call is made all the same, for what is worse to leave undone than to wait for; what comes of
        it counts like a trial.
        """
        era = self._enter(insist=insist)
        try:
            yield
        except _ANSWERS:
            self._answered(era)
            raise
        except CircuitOpenError:
            # Another circuit's, further inside: this server was not asked.
            raise
        except RetryableError as error:
            self._failure(era, error)
            raise
        except GrantwireError:
            self._answered(era)
            raise
        self._answered(era)

    def _enter(self, *, insist: bool) -> int:
        with self._lock:
            if self._next_trial is not None and not insist:
                now = self._clock()
                if now < self._next_trial:
                    raise CircuitOpenError(f"{self.name} keeps failing and is not asked again yet")
                self._next_trial = now + self._rest
            return self._era

    def _failure(self, era: int, error: RetryableError) -> None:
        with self._lock:
            if era != self._era:
                return
            self._failed += 1
            opens = self._next_trial is None
            if opens and self._failed < self._threshold:
                return
            self._next_trial = self._clock() + self._rest
            self._era += opens
        if opens:
            logger.error(
                "circuit opened", extra={"circuit": self.name, "failures": self._threshold, "reason": str(error)}
            )

    def _answered(self, era: int) -> None:
        with self._lock:
            if era != self._era:
                return
            self._failed = 0
            closes, self._next_trial = self._next_trial is not None, None
            self._era += closes
        if closes:
            logger.warning("circuit closed", extra={"circuit": self.name})
