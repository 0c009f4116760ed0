"""Which stack a checkout has: the embedded one, or the one on LocalStack. One at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from infra.local.environments import STATE
from infra.local.errors import LocalStackError
from infra.local.stack import Stack

if TYPE_CHECKING:
    from infra.local.deployed import DeployedStack
    from infra.local.progress import Progress

KINDS = ("embedded", "localstack")


def chosen(kind: str, progress: Progress) -> DeployedStack:
    """The checkout's stack of one kind, unless the other one is up."""
    running = _running()
    if running not in {None, kind}:
        raise LocalStackError(f"The checkout's {running} stack is up.", hint="`make down` stops it.")
    return _make(kind, progress)


def current(progress: Progress) -> DeployedStack:
    """The checkout's stack that is up, or the usual one."""
    return _make(_running() or KINDS[0], progress)


def _running() -> str | None:
    try:
        description = json.loads((STATE / "stack.json").read_text())
    except (OSError, ValueError):
        return None
    return str(description.get("stack", KINDS[0]))


def _make(kind: str, progress: Progress) -> DeployedStack:
    if kind == "localstack":
        from infra.local.localstack import LocalStackStack  # noqa: PLC0415  # the SDK takes a second to import

        return LocalStackStack(STATE, progress=progress)
    return Stack(STATE, progress=progress)
