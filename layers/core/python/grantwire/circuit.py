"""A circuit breaker: stop asking a server that keeps failing, and let one caller at a time find out whether it is back.

    closed ──`failures` in a row──▶ open ──after `rest`──▶ half-open: one trial ──success──▶ closed
                                     ▲                                          └─failure──▶ open

Own code, because neither of the two maintained libraries fits: pybreaker holds a lock while the guarded call runs, so
that parallel senders take turns, and imports the Redis client where there is one; circuitbreaker lets every thread
through while half-open. Neither takes the time as an argument.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire.errors import CircuitOpenError, RetryableError
from grantwire.observability import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta


class CircuitBreaker:
    """Counts RetryableErrors in a row; any other outcome means that the server answered. For any number of threads."""

    def __init__(
        self, name: str, *, failures: int, rest: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._threshold = failures
        self._rest = rest.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        # While open: when the next trial may begin. A trial in progress puts it off for everybody else.
        self._next_trial: float | None = None

    def open_for(self) -> float:
        """Seconds until a call may be tried; 0 if one may be tried now."""
        with self._lock:
            return 0.0 if self._next_trial is None else max(0.0, self._next_trial - self._clock())

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around one call; CircuitOpenError instead of the call while the circuit is open."""
        self._enter()
        try:
            yield
        except RetryableError as error:
            self._failure(error)
            raise
        except BaseException:
            self._success()
            raise
        self._success()

    def _enter(self) -> None:
        with self._lock:
            if self._next_trial is None:
                return
            now = self._clock()
            if now < self._next_trial:
                raise CircuitOpenError(f"{self.name} keeps failing; not tried again yet")
            self._next_trial = now + self._rest

    def _failure(self, error: RetryableError) -> None:
        with self._lock:
            self._failed += 1
            if self._failed < self._threshold:
                return
            opened, self._next_trial = self._next_trial is None, self._clock() + self._rest
        if opened:
            log.error("circuit opened", circuit=self.name, failures=self._failed, reason=str(error))

    def _success(self) -> None:
        with self._lock:
            closed, self._next_trial = self._next_trial is not None, None
            self._failed = 0
        if closed:
            log.warning("circuit closed", circuit=self.name)
