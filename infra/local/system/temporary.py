"""Temporary directories below the checkout's state folder: nothing is left in the system's.

A command and the programs that it runs share one, which ends with the command; what a killed command left is removed by
the next one. A server outlives the command that starts it, so it has one of its own, which ends with the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from infra.local.paths import STATE
from infra.local.system.runs import abandoned, run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from infra.local.system.processes import Account

VARIABLE = "TMPDIR"  # read by Python, Go, Rust and C programs alike
FOLDER = STATE / "tmp"


@contextlib.contextmanager
def temporary_directory(parent: Path = FOLDER) -> Iterator[Path]:
    """Give this process, and what it starts, a temporary directory while inside."""
    for folder in abandoned(parent):
        shutil.rmtree(folder, ignore_errors=True)
    before = os.environ.get(VARIABLE)
    folder = run_folder(parent)
    use(folder)
    try:
        yield folder
    finally:
        _use(before)
        remove(parent)


def use(folder: Path) -> None:
    """Make a folder the temporary directory of this process and of the programs that it starts from now on."""
    make(folder)
    _use(str(folder))


def make(folder: Path, owner: Account | None = None) -> None:
    """Make a temporary directory that nobody but its owner can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner is not None:
        os.chown(folder, owner.uid, owner.gid)


def remove(parent: Path = FOLDER) -> None:
    """Delete this process's folder; its parent stays, because another process may be about to use it."""
    shutil.rmtree(run_folder(parent), ignore_errors=True)


def _use(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = folder
    tempfile.tempdir = None  # Python keeps its first choice otherwise
