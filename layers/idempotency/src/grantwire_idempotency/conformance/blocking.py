"""An asynchronous store for the suite, whose tests are plain functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from datetime import timedelta

    from grantwire_idempotency._internal.stores.interface import AsyncStore, CheckResult, Claim, Key, KeyState


class BlockingStore:
    """The methods of an asynchronous store as plain functions, in the event loop of a runner.

    A harness gives each of its stores a runner of its own, because a loop runs in one thread at a time.
    """

    def __init__(self, store: AsyncStore, runner: asyncio.Runner) -> None:
        self.wrapped = store
        self._runner = runner

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return self._runner.run(self.wrapped.check(key, ttl, token))

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        self._runner.run(self.wrapped.store_result(claim, result, ttl, order_ttl))

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`."""
        self._runner.run(self.wrapped.store_failure(claim, error, ttl))

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        self._runner.run(self.wrapped.extend(claim, ttl))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return self._runner.run(self.wrapped.get_result(key))

    def cleanup(self) -> int:
        """See `Store`."""
        return self._runner.run(self.wrapped.cleanup())
