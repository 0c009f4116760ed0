"""Stores with one mistake each, as a user could make it. The conformance suite must notice every one of them."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from grantwire_idempotency import AsyncMemoryStore, Claim, MemoryStore
from grantwire_idempotency.conformance.blocking import BlockingStore
from grantwire_idempotency.conformance.harness import MemoryHarness
from grantwire_idempotency.errors import LeaseLostError

if TYPE_CHECKING:
    from grantwire_idempotency import CheckResult, Key

MINUTE = timedelta(minutes=1)


class IgnoresToken(MemoryStore):
    """A check that is repeated after its response was lost is in progress."""

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:  # noqa: ARG002 - the mistake
        """Claim the key for a new token each time."""
        return super().check(key, ttl)


class CompletesAfterPause(MemoryStore):
    """A worker that was paused past its claim completes its key."""

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Claim the key again if it is free."""
        try:
            super().store_result(claim, result, ttl, order_ttl)
        except LeaseLostError:
            if not isinstance(self.check(claim.key, MINUTE, claim.token), Claim):
                raise
            super().store_result(claim, result, ttl, order_ttl)


class ExtendsAfterPause(MemoryStore):
    """A worker that was paused past its claim extends it."""

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """Claim the key again if it is free."""
        if not isinstance(self.check(claim.key, ttl, claim.token), Claim):
            super().extend(claim, ttl)


class ConstantFence(MemoryStore):
    """Every claim has the same fencing number."""

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Replace the number."""
        check = super().check(key, ttl, token)
        return replace(check, fence=1) if isinstance(check, Claim) else check


class ChecksThenClaims(MemoryStore):
    """Two workers that ask at the same time both get the key."""

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """Look first, and take the key afterwards."""
        if self.get_result(key) is not None:
            return super().check(key, ttl, token)
        time.sleep(0.01)
        check = super().check(key, ttl, token)
        return check if isinstance(check, Claim) else Claim(key)


class RepeatsCompletion(MemoryStore):
    """A completion that is repeated after its response was lost is refused."""

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Refuse the second call."""
        if self.get_result(claim.key) is not None and not isinstance(self.check(claim.key, MINUTE, claim.token), Claim):
            raise LeaseLostError("completed")
        super().store_result(claim, result, ttl, order_ttl)


class DeletesEarly(MemoryStore):
    """The cleanup deletes what expires within the next hour."""

    def cleanup(self) -> int:
        """Delete by another clock."""
        clock = self._clock
        self._clock = lambda: clock() + 3_600
        try:
            return super().cleanup()
        finally:
            self._clock = clock


class ShortOrder(MemoryStore):
    """A version is forgotten after `order_ttl`, also if its result should be kept for longer."""

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """Replace the one by the other."""
        super().store_result(claim, result, ttl if order_ttl is None or claim.key.mark is None else order_ttl)


class _Harness(MemoryHarness):
    """The memory store of one class, by one of the worker's clocks."""

    def __init__(self, kind: type[MemoryStore], clock: Any = lambda: 0.0) -> None:
        self._kind = kind
        self._clock = clock
        super().__init__()

    def reset(self) -> None:
        """See `Harness`."""
        super().reset()
        self._store = self._kind(clock=lambda: self._clock() + self._seconds)


def ignores_token() -> _Harness:
    """Return the harness of `IgnoresToken`."""
    return _Harness(IgnoresToken)


def completes_after_pause() -> _Harness:
    """Return the harness of `CompletesAfterPause`."""
    return _Harness(CompletesAfterPause)


def extends_after_pause() -> _Harness:
    """Return the harness of `ExtendsAfterPause`."""
    return _Harness(ExtendsAfterPause)


def constant_fence() -> _Harness:
    """Return the harness of `ConstantFence`."""
    return _Harness(ConstantFence)


def checks_then_claims() -> _Harness:
    """Return the harness of `ChecksThenClaims`."""
    return _Harness(ChecksThenClaims)


def repeats_completion() -> _Harness:
    """Return the harness of `RepeatsCompletion`."""
    return _Harness(RepeatsCompletion)


def deletes_early() -> _Harness:
    """Return the harness of `DeletesEarly`."""
    return _Harness(DeletesEarly)


def short_order() -> _Harness:
    """Return the harness of `ShortOrder`."""
    return _Harness(ShortOrder)


class OwnStore(MemoryStore):
    """A store of this package that is correct, except for its clock."""


class OwnAsyncStore(AsyncMemoryStore):
    """An asynchronous store of this package that is correct, except for its clock."""


class _AsyncHarness(_Harness):
    """The asynchronous store, by one of the worker's clocks; each caller has its own event loop."""

    def __init__(self, clock: Any) -> None:
        self._runners = ExitStack()
        super().__init__(OwnStore, clock)

    def stores(self, count: int) -> list[BlockingStore]:
        """See `Harness`."""
        return [self._block() for _ in range(count)]

    def reset(self) -> None:
        """See `Harness`."""
        super().reset()
        self._runners.close()
        self._shared = OwnAsyncStore(clock=lambda: self._clock() + self._seconds)

    def close(self) -> None:
        """See `Harness`."""
        self._runners.close()

    def _block(self) -> BlockingStore:
        return BlockingStore(self._shared, self._runners.enter_context(asyncio.Runner()))


def correct_async() -> _AsyncHarness:
    """Return an asynchronous store without a mistake."""
    return _AsyncHarness(lambda: 0.0)


def wall_clock_of_async() -> _AsyncHarness:
    """Return an asynchronous store that expires entries by the worker's `datetime.now`."""
    return _AsyncHarness(lambda: datetime.now(UTC).timestamp())


def wall_clock() -> _Harness:
    """Return a store that expires entries by the worker's `time.time`."""
    return _Harness(OwnStore, lambda: time.time())  # noqa: PLW0108 - the name is looked up at each call


def wall_clock_of_datetime() -> _Harness:
    """Return a store that expires entries by the worker's `datetime.now`."""
    return _Harness(OwnStore, lambda: datetime.now(UTC).timestamp())


def correct() -> _Harness:
    """Return a store without a mistake."""
    return _Harness(OwnStore)
