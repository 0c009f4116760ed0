"""Folders in memory, for servers whose data nobody will miss: a database is made there in a tenth of the time.

Where the system has no such place, or too little room in it, they are in the state folder like everything else.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from infra.local.unprivileged import CHECKOUT, digest

_MEMORY = Path("/dev/shm")  # noqa: S108  # what is in it belongs to us, or is not used
_ROOM = 2 * 1024**3


def memory() -> Path:
    """Name this checkout's folder in memory; it exists only while tests run, or after they were killed."""
    return _MEMORY / f"grantwire-{digest(CHECKOUT)}"


def quick(folder: Path) -> Path:
    """Give the folder of this name in memory, or the folder itself."""
    try:
        if shutil.disk_usage(_MEMORY).free < _ROOM:
            return folder
        memory().mkdir(mode=0o711, exist_ok=True)
        found = memory().lstat()
    except OSError:
        return folder
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return memory() / folder.name if ours else folder


def forget() -> None:
    """Delete this checkout's folder in memory."""
    if memory().is_dir() and memory().lstat().st_uid == os.geteuid():
        shutil.rmtree(memory(), ignore_errors=True)
