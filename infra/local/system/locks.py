"""Lock files for work that must not run twice at the same time in a checkout."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.progress import Progress


def stack_lock(state: Path) -> Path:
    """Return the lock file of the stack in a state folder. A checkout has one stack at a time, of either kind."""
    return state / "stack.lock"


@contextlib.contextmanager
def hold_lock(path: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock file inside the block; wait for it, with a progress line, if another process holds it.

    The system releases the lock when the process ends, also if the process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("Waiting for another command in this checkout"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold a lock file inside the block if no other process holds it; yield whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
