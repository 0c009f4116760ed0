"""Objects that must not carry their locks and connections into a process that is forked (C17)."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object with a lock or a connection."""

    def reset_after_fork(self) -> None:
        """Replace locks, which another thread may have held, and drop connections without closing them."""


_OBJECTS: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch_forks(fork_aware: ForkAware) -> None:
    """Call `reset_after_fork` in every process that is forked from this one, before any other code runs there."""
    _OBJECTS.add(fork_aware)


def _reset_all() -> None:
    for fork_aware in list(_OBJECTS):
        fork_aware.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all)
