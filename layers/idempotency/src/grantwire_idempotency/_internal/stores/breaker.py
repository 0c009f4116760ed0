"""A store behind a circuit breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.circuit_breaker import CircuitBreaker
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.wiring import async_store_rule, require, sync_store_rule

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency._internal.foundation.fail_mode import FailMode
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.foundation.wiring import Rule
    from grantwire_idempotency._internal.stores.interface import AsyncStore, CheckResult, Claim, Key, KeyState, Store


class _Guard:
    """Guards the calls of a store, with or without asyncio."""

    def __init__(self, store: Any, breaker: CircuitBreaker, rule: Rule) -> None:
        require(
            rule,
            (isinstance(breaker, CircuitBreaker), f"breaker must be a CircuitBreaker, not {breaker!r:.80}"),
        )
        self.fail_mode: FailMode | None = getattr(store, "fail_mode", None)
        self._store = store
        self._breaker = breaker

    def _guarded(self, call: Call, *, force: bool = False) -> Steps[Any]:
        with self._breaker.guard(force=force):
            return (yield call)


class BreakerStore(_Guard):
    """A store behind a circuit breaker (C10): raises CircuitOpenError without a call while the circuit is open.

    CircuitOpenError is a RetryableError, so callers handle it like an unavailable store. `store_result` ignores an open
    circuit: its work is done, and a retry would repeat the work if the result were not stored.
    """

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        super().__init__(store, breaker, sync_store_rule(store))

    def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return drive(self._guarded(lambda: self._store.check(key, ttl, token)))  # type: ignore[no-any-return]

    def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `Store`."""
        drive(self._guarded(lambda: self._store.store_result(claim, result, ttl, order_ttl), force=True))

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`. A claim that could not be released expires."""
        drive(self._guarded(lambda: self._store.store_failure(claim, error, ttl)))

    def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        drive(self._guarded(lambda: self._store.extend(claim, ttl)))

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return drive(self._guarded(lambda: self._store.get_result(key)))  # type: ignore[no-any-return]

    def cleanup(self) -> int:
        """See `Store`."""
        return drive(self._guarded(self._store.cleanup))  # type: ignore[no-any-return]


class AsyncBreakerStore(_Guard):
    """A `BreakerStore` for asyncio."""

    def __init__(self, store: AsyncStore, breaker: CircuitBreaker) -> None:
        super().__init__(store, breaker, async_store_rule(store))

    async def check(self, key: Key, ttl: timedelta, token: str | None = None) -> CheckResult:
        """See `Store`."""
        return await drive_async(self._guarded(lambda: self._store.check(key, ttl, token)))

    async def store_result(
        self, claim: Claim, result: str | None, ttl: timedelta, order_ttl: timedelta | None = None
    ) -> None:
        """See `BreakerStore`."""
        await drive_async(self._guarded(lambda: self._store.store_result(claim, result, ttl, order_ttl), force=True))

    async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `BreakerStore`."""
        await drive_async(self._guarded(lambda: self._store.store_failure(claim, error, ttl)))

    async def extend(self, claim: Claim, ttl: timedelta) -> None:
        """See `Store`."""
        await drive_async(self._guarded(lambda: self._store.extend(claim, ttl)))

    async def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        return await drive_async(self._guarded(lambda: self._store.get_result(key)))

    async def cleanup(self) -> int:
        """See `Store`."""
        return await drive_async(self._guarded(self._store.cleanup))
