"""Objects that must not carry their locks and connections into a process that is forked (C17).

`ForkSafeLock` is for short steps that run no code of the user.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import TracebackType


class ForkAware(Protocol):
    """An object with a lock or a connection."""

    def reset_after_fork(self) -> None:
        """Replace locks, which another thread may have held, and drop connections without closing them."""


_OBJECTS: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch_forks(fork_aware: ForkAware) -> None:
    """Call `reset_after_fork` in every process that is forked from this one, before any other code runs there."""
    _OBJECTS.add(fork_aware)


class ForkSafeLock:
    """A lock that is free in a process that is forked, even if another thread held it at that moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        watch_forks(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def reset_after_fork(self) -> None:
        """See `ForkAware`."""
        self._lock = threading.Lock()


def _reset_all() -> None:
    for fork_aware in list(_OBJECTS):
        fork_aware.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all)
