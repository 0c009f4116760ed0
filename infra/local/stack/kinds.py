"""Which stack a checkout has: the embedded one, or the one on LocalStack. One at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.stack.embedded import Stack
from infra.local.system import files

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

KINDS = ("embedded", "localstack")


def chosen(kind: str, progress: Progress) -> DeployedStack:
    """The checkout's stack of one kind, unless the other one is up."""
    running = _running()
    if running not in {None, kind}:
        raise CommandError(f"The checkout's {running} stack is up.", hint="`make down` stops it.")
    return _make(kind, progress)


def current(progress: Progress) -> DeployedStack:
    """The checkout's stack that is up, or the usual one."""
    return _make(_running() or KINDS[0], progress)


def _running() -> str | None:
    description = files.read_record(STATE / DESCRIPTION)
    return str(description.get("stack", KINDS[0])) if description else None


def _make(kind: str, progress: Progress) -> DeployedStack:
    if kind == "localstack":
        from infra.local.stack.localstack import LocalStackStack  # noqa: PLC0415  # the SDK takes a second to import

        return LocalStackStack(STATE, progress=progress)
    return Stack(STATE, progress=progress)
