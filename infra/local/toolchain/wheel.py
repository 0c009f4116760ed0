"""Builds the wheels of this checkout's distributions with the locked build tool, without network."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = CHECKOUT / "layers" / "idempotency"
COMMAND_LINE = CHECKOUT / "infra" / "cli"
FOLDER = STATE / "wheel"


def build_wheel(folder: Path, project: Path = LIBRARY) -> Path:
    """Build the wheel of a distribution in a folder, in place of an older one, and return its path."""
    name = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CommandError("The wheel could not be built.", hint=result.stderr)
    (path,) = folder.glob(f"{name}-*.whl")
    return path
