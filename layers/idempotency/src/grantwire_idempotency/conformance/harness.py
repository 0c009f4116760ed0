"""What the suite needs of a store: several instances, a clock that it can advance, and an empty start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from grantwire_idempotency._internal.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from grantwire_idempotency._internal.stores.interface import Store


class Harness(Protocol):
    """One kind of store. With an attribute `fences = False`, its claims have the fencing number 0."""

    def stores(self, count: int) -> Sequence[Store]:
        """Return this many stores with the same keys and clock, each with its own connection."""

    def advance(self, step: timedelta) -> None:
        """Advance the clock by which entries expire, or let all entries expire earlier."""

    def reset(self) -> None:
        """Delete every key."""

    def close(self) -> None:
        """Close every connection."""


class MemoryHarness:
    """The memory store; its clock is a number."""

    def __init__(self) -> None:
        self.reset()

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        return [self._store] * count

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        self._seconds += step.total_seconds()

    def reset(self) -> None:
        """See `Harness`."""
        self._seconds = 0.0
        self._store = MemoryStore(clock=lambda: self._seconds)

    def close(self) -> None:
        """See `Harness`."""
