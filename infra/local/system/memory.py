"""Folders in memory for the data of test servers: creating a database there takes a tenth of the time.

Where the system has no memory file system, or too little space in it, the folders are in the state folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from infra.local.paths import CHECKOUT
from infra.local.system.unprivileged import digest

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder that another account created is never used
_MIN_FREE_BYTES = 2 * 1024**3


def memory_folder() -> Path:
    """Return the path of this checkout's folder in memory.

    It exists only while tests run, or after a test run was killed.
    """
    return _SHARED_MEMORY / f"grantwire-{digest(CHECKOUT)}"


def in_memory(folder: Path) -> Path:
    """Return the folder of the same name in memory, or the folder itself where memory is not available."""
    try:
        if shutil.disk_usage(_SHARED_MEMORY).free < _MIN_FREE_BYTES:
            return folder
        memory_folder().mkdir(mode=0o711, exist_ok=True)
    except OSError:
        return folder
    return memory_folder() / folder.name if _is_ours() else folder


def remove(folder: Path) -> None:
    """Delete the folder of this name in memory, and this checkout's folder if it is then empty."""
    if _is_ours():
        shutil.rmtree(memory_folder() / folder.name, ignore_errors=True)
        with contextlib.suppress(OSError):
            memory_folder().rmdir()


def remove_all() -> None:
    """Delete this checkout's folder in memory."""
    if _is_ours():
        shutil.rmtree(memory_folder(), ignore_errors=True)


def _is_ours() -> bool:
    """Return whether this account created the checkout's folder: every account may write to /dev/shm."""
    try:
        status = memory_folder().lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
