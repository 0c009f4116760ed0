"""The interface of distributed locks (C7).

A lock is a lease: one process at a time holds a key, until it releases the lock or the lease expires. A lock cannot
stop an owner that was paused until its lease expired and then continues. Work that must never happen twice needs a
claim in a store, or a condition in the write itself.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency._internal.foundation.backoff import Backoff
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.validation import clean_text
from grantwire_idempotency._internal.foundation.wiring import duration_rule, logger_rule, require
from grantwire_idempotency._internal.stores.interface import MAX_KEY_LENGTH, clamp_ttl
from grantwire_idempotency.errors import LeaseLostError, LockHeldError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# Delay between two attempts to acquire a lock: from 50 ms to one second.
_BACKOFF = Backoff(timedelta(milliseconds=50), timedelta(seconds=1), timedelta(0), 1, 1)


class Lease(Protocol):
    """One acquisition of a lock on the server."""

    @property
    def fence(self) -> int:
        """The fencing number."""

    def extend(self, ttl: timedelta) -> bool:
        """Let the lease expire `ttl` from now; return False if it has already expired."""

    def release(self) -> bool:
        """End the lease; return False if it had already expired."""


class Lock:
    """A lock that is held. A `with` statement releases it at the end.

    Only this object can extend or release the lock.
    """

    def __init__(self, key: str, token: str, lease: Lease, logger: LibraryLogger = default_logger) -> None:
        self.key = key
        self.token = token
        self._lease = lease
        self._logger = logger
        self._released = False

    @property
    def fence(self) -> int:
        """The fencing number: higher than that of every earlier owner of the lock (C20).

        Write it with the effect, under a condition such as `WHERE fence < %s`. Then an owner that was paused until its
        lease expired changes nothing after its successor.
        """
        return self._lease.fence

    def extend(self, ttl: timedelta) -> None:
        """Hold the lock for `ttl` from now.

        Raises LeaseLostError if the lock was released or has expired: another owner may hold it. Raises RetryableError
        if the server is unavailable; the lock may or may not be extended then.
        """
        if self._released or not self._lease.extend(_valid_ttl(ttl)):
            raise LeaseLostError("the lock was lost before it could be extended")

    def release(self) -> None:
        """Release the lock. A second call has no effect.

        Raises LeaseLostError if the lock had already expired: another owner may have held it at the same time. In rare
        cases it is also raised when the server released the lock and its response was lost. Raises RetryableError if
        the server is unavailable: call it again, or let the lock expire.
        """
        if self._released:
            return
        was_held = self._lease.release()
        self._released = True
        if not was_held:
            raise LeaseLostError("the lock was lost before it was released")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock without hiding an error of the block; an unavailable server is only logged."""
        logger = self._logger
        try:
            self.release()
        except LeaseLostError as lost:
            if error is None:
                raise
            logger.error(  # noqa: TRY400 - the error of the block propagates
                "lock lost", extra={"lock_key": self.key, "reason": str(lost)}
            )
        except RetryableError as unreachable:
            logger.warning(
                "could not release lock, it expires automatically",
                extra={"lock_key": self.key, "reason": str(unreachable)},
            )


class LockManager(ABC):
    """Acquires locks. Subclasses implement one atomic attempt; waiting is the same for every server."""

    def __init__(
        self,
        *,
        logger: LibraryLogger | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        require(logger_rule(logger))
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._sleep = sleep
        self._monotonic = monotonic

    def acquire(self, key: str, ttl: timedelta, *, wait: timedelta = timedelta(0)) -> Lock:
        """Acquire the lock `key` for `ttl` from now.

        A caller that waits tries again after growing delays of up to one second; there is no queue. A lock is not
        reentrant. Raises LockHeldError if the lock was not free within `wait`, and RetryableError if the server is
        unavailable.
        """
        clean_text("lock key", key, max_length=MAX_KEY_LENGTH)
        ttl = _valid_ttl(ttl)
        token = uuid.uuid4().hex
        deadline = self._monotonic() + wait.total_seconds()
        attempt = 0
        while True:
            lease = self._try_twice(key, token, ttl)
            if lease is not None:
                return Lock(key, token, lease, self._logger)
            remaining = deadline - self._monotonic()
            if remaining <= 0:
                raise LockHeldError("another owner holds the lock; retry later")
            attempt += 1
            self._sleep(min(_BACKOFF.delay(attempt, random.random).total_seconds(), remaining))

    def _try_twice(self, key: str, token: str, ttl: timedelta) -> Lease | None:
        """Try once more if the server did not answer: it may have given the lock to this token."""
        try:
            return self._try_acquire(key, token, ttl)
        except RetryableError:
            return self._try_acquire(key, token, ttl)

    @abstractmethod
    def _try_acquire(self, key: str, token: str, ttl: timedelta) -> Lease | None:
        """Acquire the lock for `ttl`, or return None if another token holds it."""


def _valid_ttl(ttl: timedelta) -> timedelta:
    """Return a time to live that every server supports: Redis reads zero milliseconds as no expiry."""
    require(duration_rule("ttl", ttl))
    return clamp_ttl(ttl)
