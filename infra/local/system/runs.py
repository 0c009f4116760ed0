"""Folders of one run of a command, named by its process, so that a later run can recognise what a killed one left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.system.processes import identify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX = "run-"


def run_folder(parent: Path) -> Path:
    """Name the folder of this process."""
    return parent / f"{_PREFIX}{os.getpid()}"


def abandoned(parent: Path) -> Iterator[Path]:
    """Give the folders of runs that have ended and left them."""
    for folder in sorted(parent.glob(f"{_PREFIX}*")):
        number = folder.name.removeprefix(_PREFIX)
        if number.isdigit() and identify(int(number)) is None:
            yield folder
