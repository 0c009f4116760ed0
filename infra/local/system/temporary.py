"""Temporary directories below the checkout's state folder, so that none are left in the system's.

A command and the programs that it runs share one directory, which is removed when the command ends. The next command
removes the directories of killed commands. A server outlives the command that starts it, so it has its own directory,
which is removed when the server stops.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from infra.local.paths import STATE
from infra.local.system.runs import list_abandoned, run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.system.processes import Account

VARIABLE = "TMPDIR"  # Python, Go, Rust and C programs all read it
FOLDER = STATE / "tmp"


@contextlib.contextmanager
def temporary_directory(parent: Path = FOLDER) -> Iterator[Path]:
    """Provide a temporary directory for this process and its child processes inside the block."""
    for folder in list_abandoned(parent):
        shutil.rmtree(folder, ignore_errors=True)
    previous = os.environ.get(VARIABLE)
    folder = run_folder(parent)
    use(folder)
    try:
        yield folder
    finally:
        _set_variable(previous)
        remove(parent)


def use(folder: Path) -> None:
    """Use a folder as the temporary directory of this process and of the programs that it starts from now on."""
    make(folder)
    _set_variable(str(folder))


def make(folder: Path, owner: Account | None = None) -> None:
    """Create a temporary directory that only its owner can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner is not None:
        os.chown(folder, owner.uid, owner.gid)


def remove(parent: Path = FOLDER) -> None:
    """Delete this process's folder. Its parent stays, because another process may be about to use it."""
    shutil.rmtree(run_folder(parent), ignore_errors=True)


def _set_variable(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = folder
    tempfile.tempdir = None  # otherwise Python keeps the directory that it chose first
