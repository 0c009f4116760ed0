"""A store that is not asked while it keeps failing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire_idempotency.circuit_breaker import CircuitBreaker
from grantwire_idempotency.wiring import require, store_rule

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency.stores.interface import Check, Key, New, Record, Store


class BreakerStore:
    """A store behind a circuit breaker (C10): while the circuit is open CircuitOpenError comes at once, without a wait.

    That is a RetryableError, so whoever uses the store does what they do when it is down. Only `store_result` is tried
    all the same: its work is done, and would be done again if nobody wrote that down.
    """

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        require(
            store_rule(store),
            (isinstance(breaker, CircuitBreaker), f"breaker must be a CircuitBreaker, not {breaker!r:.80}"),
        )
        self._store = store
        self._breaker = breaker

    def check(self, key: Key, ttl: timedelta) -> Check:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.check(key, ttl)

    def store_result(self, claim: New, result: str | None, ttl: timedelta) -> None:
        """See `Store`."""
        with self._breaker.guard(insist=True):
            self._store.store_result(claim, result, ttl)

    def store_failure(self, claim: New, error: str, ttl: timedelta) -> None:
        """See `Store`; a claim that could not be given back ends by itself."""
        with self._breaker.guard():
            self._store.store_failure(claim, error, ttl)

    def get_result(self, key: Key) -> Record | None:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.get_result(key)

    def cleanup(self) -> int:
        """See `Store`."""
        with self._breaker.guard():
            return self._store.cleanup()
