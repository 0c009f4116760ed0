"""A switch that turns idempotency off, for tests of the work itself (C30)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.forks import ForkSafeLock
from grantwire_idempotency._internal.foundation.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Switch:
    """Counts the open blocks of the process: a test may call the work in another thread or event loop."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.blocks = 0

    def add(self, blocks: int) -> None:
        """Open or close a block."""
        with self._lock:
            self.blocks += blocks


_SWITCH = _Switch()


@contextmanager
def disabled() -> Iterator[None]:
    """Run all work of this process inside the block without idempotency: every call runs, and no store is used.

    For tests of the work itself. It is for `@idempotent` and consumers; guards, checkers and locks work as before.
    `current_claim()` returns a claim that has the fencing number 1 and needs no extension. Every run logs a warning and
    counts as unguarded, so that a block outside of tests is noticed.
    """
    logger.error("idempotency is disabled, every repeat runs again")
    _SWITCH.add(1)
    try:
        yield
    finally:
        _SWITCH.add(-1)


def is_disabled() -> bool:
    """Return whether a block of `disabled` is open."""
    return _SWITCH.blocks > 0
