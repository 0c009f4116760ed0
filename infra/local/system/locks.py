"""One at a time: what must not run twice in a checkout waits for its turn, and says so."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.progress import Progress


@contextlib.contextmanager
def exclusive(path: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock file. The system frees it when its holder ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("Waiting for another command in this checkout"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file if nobody does; tell whether that is so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
