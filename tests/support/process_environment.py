"""The environment of another process, read from /proc."""

from __future__ import annotations

import os

from infra.local.system.processes import PROC


def read_environment(pid: int) -> dict[str, str] | None:
    """Return the environment that a process was started with, or None if the process has ended."""
    try:
        variables = os.fsdecode((PROC / str(pid) / "environ").read_bytes()).split("\0")
    except OSError:
        return None
    return dict(variable.split("=", 1) for variable in variables if "=" in variable)
