"""Folders of a single run, named after its process id, so that a later run can find those of killed runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.system.processes import identify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX = "run-"


def run_folder(parent: Path) -> Path:
    """Return the path of this process's folder."""
    return parent / f"{_PREFIX}{os.getpid()}"


def list_abandoned(parent: Path) -> Iterator[Path]:
    """Yield the folders of runs whose process has ended."""
    for folder in sorted(parent.glob(f"{_PREFIX}*")):
        number = folder.name.removeprefix(_PREFIX)
        if number.isdigit() and identify(int(number)) is None:
            yield folder
