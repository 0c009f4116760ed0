"""The environment of another process, as Linux shows it."""

from __future__ import annotations

import os

from infra.local.system.processes import PROC


def environment_of(pid: int) -> dict[str, str] | None:
    """What a process was started with; none if it has gone."""
    try:
        variables = os.fsdecode((PROC / str(pid) / "environ").read_bytes()).split("\0")
    except OSError:
        return None
    return dict(one.split("=", 1) for one in variables if "=" in one)
