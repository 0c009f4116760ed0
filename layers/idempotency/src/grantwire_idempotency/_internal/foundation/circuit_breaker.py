"""A circuit breaker: stop calling a server that keeps failing, and try one call at a time until it responds again.

    closed ──`failures` in a row──▶ open ──after `rest`──▶ half-open: one trial ──response──▶ closed
                                     ▲                                          └─failure───▶ open

The two maintained libraries do not fit. pybreaker holds a lock during the guarded call, which serialises parallel
senders, and it imports the Redis client if that is installed. circuitbreaker lets every thread through while half-open.
Neither accepts a clock as an argument.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.wiring import logger_rule, require
from grantwire_idempotency.errors import (
    BusyError,
    CircuitOpenError,
    ConfigError,
    GrantwireError,
    LeaseLostError,
    LockHeldError,
    RequestInProgressError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# Retryable, but a response of a healthy server.
_RESPONSES = (LeaseLostError, LockHeldError, RequestInProgressError)


class CircuitBreaker:
    """Counts consecutive failures of a server. Thread-safe; threads never wait for each other.

    A failure is a RetryableError, except LeaseLostError, LockHeldError and RequestInProgressError, which only a healthy
    server can return. Success and every other GrantwireError count as responses. A BusyError and any other exception,
    such as an interrupt or a bug, have no effect. The outcome of a call that began before the circuit last opened or
    closed has no effect either, because it is out of date.

    While the circuit is open, one trial starts in each `rest`, so a trial that hangs does not block the next one.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int,
        rest: timedelta,
        logger: LibraryLogger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require(logger_rule(logger))
        if failures < 1 or rest.total_seconds() <= 0:
            raise ConfigError([f"failures must be at least 1 and rest must be positive, not {failures} and {rest}"])
        self.name = name
        self._threshold = failures
        self._rest = rest.total_seconds()
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._clock = clock
        self._lock = ForkSafeLock()
        self._failures = 0
        # While open: the earliest start of the next trial. A trial that starts moves it on, so that no second one does.
        self._next_trial: float | None = None
        # Number of times that the circuit has opened or closed.
        self._era = 0

    @property
    def closed(self) -> bool:
        """Whether calls are allowed without a trial."""
        return self._next_trial is None

    def open_for(self) -> float:
        """Return the seconds until a call is allowed; 0 if one is allowed now."""
        with self._lock:
            return 0.0 if self._next_trial is None else max(0.0, self._next_trial - self._clock())

    @contextmanager
    def guard(self, *, force: bool = False) -> Iterator[None]:
        """Guard one call: raise CircuitOpenError instead while the circuit is open.

        With `force` the call is made even then, for calls that must not be skipped. Its outcome counts like a trial.
        """
        era = self._enter(force=force)
        try:
            yield
        except _RESPONSES:
            self._record_response(era)
            raise
        except (CircuitOpenError, BusyError):
            # The server was not called: by a circuit breaker inside the call, or because no connection was free.
            raise
        except RetryableError as error:
            self._record_failure(era, error)
            raise
        except GrantwireError:
            self._record_response(era)
            raise
        self._record_response(era)

    def _enter(self, *, force: bool) -> int:
        with self._lock:
            if self._next_trial is not None and not force:
                now = self._clock()
                if now < self._next_trial:
                    raise CircuitOpenError(f"{self.name} keeps failing and is not called until the next trial")
                self._next_trial = now + self._rest
            return self._era

    def _record_failure(self, era: int, error: RetryableError) -> None:
        with self._lock:
            if era != self._era:
                return
            self._failures += 1
            was_closed = self._next_trial is None
            if was_closed and self._failures < self._threshold:
                return
            self._next_trial = self._clock() + self._rest
            self._era += was_closed
        if was_closed:
            logger = self._logger
            logger.error(
                "circuit opened", extra={"circuit": self.name, "failures": self._threshold, "reason": str(error)}
            )

    def _record_response(self, era: int) -> None:
        with self._lock:
            if era != self._era:
                return
            self._failures = 0
            was_open, self._next_trial = self._next_trial is not None, None
            self._era += was_open
        if was_open:
            logger = self._logger
            logger.warning("circuit closed", extra={"circuit": self.name})
