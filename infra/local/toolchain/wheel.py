"""Builds the wheel of the idempotency library with the locked build tool, without network."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = CHECKOUT / "layers" / "idempotency"
FOLDER = STATE / "wheel"


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    result = subprocess.run(command, cwd=LIBRARY, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CommandError("The wheel could not be built.", hint=result.stderr)
    (path,) = folder.glob("*.whl")
    return path
