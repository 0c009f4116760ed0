"""`make status` and `make doctor`: the commands of `grantwire`, for the stack of this checkout."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from infra.local.paths import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def status(arguments: Sequence[str], _progress: Progress) -> int:
    """Run `grantwire status`, and return its exit code."""
    return _run("status", arguments)


def doctor(arguments: Sequence[str], _progress: Progress) -> int:
    """Run `grantwire doctor`, and return its exit code."""
    return _run("doctor", arguments)


def _run(command: str, arguments: Sequence[str]) -> int:
    program = [sys.executable, "-m", "grantwire_cli", command, "--checkout", str(CHECKOUT), *arguments]
    return subprocess.run(program, check=False).returncode
