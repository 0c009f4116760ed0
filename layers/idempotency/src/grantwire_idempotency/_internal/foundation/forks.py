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


class ForkPrepared(ForkAware, Protocol):
    """An object whose resource must not even be open during a fork."""

    def prepare_fork(self) -> bool:
        """Close the resource and keep other threads from opening it. Return whether that succeeded."""

    def resume_after_fork(self) -> None:
        """Let the threads of the process that has forked open the resource again."""


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


class _ForkingThread(threading.local):
    """The objects that this thread has prepared for its fork."""

    def __init__(self) -> None:
        self.prepared: list[ForkPrepared] = []


_PREPARED_OBJECTS: weakref.WeakSet[ForkPrepared] = weakref.WeakSet()
_PREPARED_OBJECTS_LOCK = ForkSafeLock()
_FORKING_THREAD = _ForkingThread()


def prepare_forks(fork_prepared: ForkPrepared) -> None:
    """Call `prepare_fork` before each fork of this process, and one of the other two methods after it."""
    with _PREPARED_OBJECTS_LOCK:
        _PREPARED_OBJECTS.add(fork_prepared)
    watch_forks(fork_prepared)


def _prepare_all() -> None:
    with _PREPARED_OBJECTS_LOCK:
        # In the same order in each thread: two of them can fork at the same time.
        fork_prepared = sorted(_PREPARED_OBJECTS, key=id)
    _FORKING_THREAD.prepared = [one for one in fork_prepared if one.prepare_fork()]


def _resume_all() -> None:
    while _FORKING_THREAD.prepared:
        _FORKING_THREAD.prepared.pop().resume_after_fork()


def _reset_all() -> None:
    _FORKING_THREAD.prepared = []
    for fork_aware in list(_OBJECTS):
        fork_aware.reset_after_fork()


os.register_at_fork(before=_prepare_all, after_in_parent=_resume_all, after_in_child=_reset_all)
