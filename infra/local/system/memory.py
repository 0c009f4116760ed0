"""Folders in memory, for servers whose data nobody will miss: a database is made there in a tenth of the time.

Where the system has no such place, or too little room in it, they are in the state folder like everything else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from infra.local.paths import CHECKOUT
from infra.local.system.unprivileged import digest

_MEMORY = Path("/dev/shm")  # noqa: S108  # what is in it belongs to us, or is not used
_ROOM = 2 * 1024**3


def memory() -> Path:
    """Name this checkout's folder in memory; it exists only while tests run, or after they were killed."""
    return _MEMORY / f"grantwire-{digest(CHECKOUT)}"


def in_memory(folder: Path) -> Path:
    """Give the folder of this name in memory, or the folder itself."""
    try:
        if shutil.disk_usage(_MEMORY).free < _ROOM:
            return folder
        memory().mkdir(mode=0o711, exist_ok=True)
    except OSError:
        return folder
    return memory() / folder.name if _ours() else folder


def remove(folder: Path) -> None:
    """Delete the folder of this name in memory, and this checkout's folder with the last of them."""
    if _ours():
        shutil.rmtree(memory() / folder.name, ignore_errors=True)
        with contextlib.suppress(OSError):
            memory().rmdir()


def remove_all() -> None:
    """Delete this checkout's folder in memory."""
    if _ours():
        shutil.rmtree(memory(), ignore_errors=True)


def _ours() -> bool:
    """Everyone may write there: whether the folder of this name is one that we made."""
    try:
        found = memory().lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
