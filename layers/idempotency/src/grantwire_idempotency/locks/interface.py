"""What every distributed lock promises (C7).

A lock is a lease: of all processes that ask for a key one has it, until it gives it back or its time is up. It keeps
workers that behave apart. It cannot stop one that was frozen past its time and goes on: what must never happen twice
needs a store's claim, or a fence, where it is written down.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency.backoff import Backoff
from grantwire_idempotency.errors import LeaseLostError, LockHeldError, RetryableError
from grantwire_idempotency.logs import logger
from grantwire_idempotency.stores.interface import LONGEST_KEY, lifetime
from grantwire_idempotency.validation import clean_text
from grantwire_idempotency.wiring import length_rule, require

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


# Between two tries to take a lock that is held: from 50 ms to a second.
_BACKOFF = Backoff(timedelta(milliseconds=50), timedelta(seconds=1), timedelta(0), 1, 1)


class Lease(Protocol):
    """One acquisition in a server; only it can say these two things about itself."""

    def extend(self, ttl: timedelta) -> bool:
        """Let it end `ttl` from now; False if it has ended."""

    def release(self) -> bool:
        """End it; False if it had ended before."""


class Lock:
    """A lock that is held. In a `with` statement it is released at the end.

    It belongs to this object alone: nothing that another object, thread or process does extends or releases it.
    """

    def __init__(self, key: str, token: str, lease: Lease) -> None:
        self.key = key
        self.token = token
        self._lease = lease
        self._released = False

    def extend(self, ttl: timedelta) -> None:
        """Hold it for `ttl` from now. LeaseLostError if it was released or its time was up: somebody else may have it.

        RetryableError if the server is out of reach; then it is not known whether it was extended.
        """
        if self._released or not self._lease.extend(_lifetime(ttl)):
            raise LeaseLostError("the lock was lost before it could be extended")

    def release(self) -> None:
        """Give it back; doing so again changes nothing.

        LeaseLostError if its time was up before: then somebody else may have had it while this one was at work. (Also,
        seldom, if it was given back and the server's answer was lost.) RetryableError if the server is out of reach: it
        may be tried again, and the lock ends by itself.
        """
        if self._released:
            return
        in_time = self._lease.release()
        self._released = True
        if not in_time:
            raise LeaseLostError("the lock was lost before it was released")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; a server out of reach is only logged, since the work is done, and no error of the work is hidden."""
        try:
            self.release()
        except LeaseLostError as lost:
            if error is None:
                raise
            logger.error(  # noqa: TRY400 - the error of the work is on its way
                "lock lost", extra={"lock_key": self.key, "reason": str(lost)}
            )
        except RetryableError as unreachable:
            logger.warning(
                "could not release lock, it expires automatically", extra={"lock_key": self.key, "reason": str(unreachable)}
            )


class LockManager(ABC):
    """Gives out locks. What the server does is atomic; how to wait for it is the same for every server."""

    def __init__(
        self, *, sleep: Callable[[float], None] = time.sleep, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep = sleep
        self._monotonic = monotonic

    def acquire(self, key: str, ttl: timedelta, *, wait: timedelta = timedelta(0)) -> Lock:
        """The lock `key`, held for `ttl` from now, or LockHeldError if it was not free within `wait`.

        Who waits looks again after pauses that grow up to a second; there is no queue. A lock is not reentrant: whoever
        holds it waits like everybody else. RetryableError if the server is out of reach.
        """
        clean_text("lock key", key, longest=LONGEST_KEY)
        ttl = _lifetime(ttl)
        token = uuid.uuid4().hex
        deadline = self._monotonic() + wait.total_seconds()
        attempt = 0
        while True:
            lease = self._take(key, token, ttl)
            if lease is not None:
                return Lock(key, token, lease)
            left = deadline - self._monotonic()
            if left <= 0:
                raise LockHeldError("somebody else holds the lock, try again later")
            attempt += 1
            self._sleep(min(_BACKOFF.delay(attempt, random.random).total_seconds(), left))

    @abstractmethod
    def _take(self, key: str, token: str, ttl: timedelta) -> Lease | None:
        """Take the lock for `ttl` if nobody has it; whose token it already bears has it."""


def _lifetime(ttl: timedelta) -> timedelta:
    """Some time or other, and one that every server can count with: Redis takes no milliseconds for no end at all."""
    require(length_rule("ttl", ttl))
    return lifetime(ttl)
