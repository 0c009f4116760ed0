"""A store behind a circuit breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire_idempotency.circuit_breaker import CircuitBreaker
from grantwire_idempotency.wiring import require, store_rule

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency.stores.interface import CheckResult, Claim, Key, KeyState, Store


class BreakerStore:
    """A store behind a circuit breaker (C10): raises CircuitOpenError without a call while the circuit is open.

    CircuitOpenError is a RetryableError, so callers handle it like an unavailable store. `store_result` ignores an open
    circuit: its work is done, and a retry would repeat the work if the result were not stored.
    """

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        require(
            store_rule(store),
            (isinstance(breaker, CircuitBreaker), f"breaker must be a CircuitBreaker, not {breaker!r:.80}"),
        )
        self._store = store
        self._breaker = breaker

    def check(self, key: Key, ttl: timedelta) -> CheckResult:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.check(key, ttl)

    def store_result(self, claim: Claim, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        with self._breaker.guard(force=True):
            self._store.store_result(claim, result, ttl)

    def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
        """See `Store`. A claim that could not be released expires."""
        with self._breaker.guard():
            self._store.store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> KeyState | None:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.get_result(key)

    def cleanup(self) -> int:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.cleanup()
