"""The selection of a checkout's stack: embedded or on LocalStack, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.stack.embedded import EmbeddedStack
from infra.local.system import files

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

STACK_KINDS = ("embedded", "localstack")


def select_stack(kind: str, progress: Progress) -> DeployedStack:
    """Return the checkout's stack of one kind.

    Raises CommandError if the checkout's other stack is up.
    """
    running = _running_kind()
    if running not in {None, kind}:
        raise CommandError(f"The checkout's {running} stack is up.", hint="Stop it first with `make down`.")
    return _build_stack(kind, progress)


def current_stack(progress: Progress) -> DeployedStack:
    """Return the checkout's stack that is up, or the embedded one."""
    return _build_stack(_running_kind() or STACK_KINDS[0], progress)


def _running_kind() -> str | None:
    description = files.read_record(STATE / DESCRIPTION)
    return str(description.get("stack", STACK_KINDS[0])) if description else None


def _build_stack(kind: str, progress: Progress) -> DeployedStack:
    if kind == "localstack":
        from infra.local.stack.localstack import LocalStackStack  # noqa: PLC0415  # the SDK takes a second to import

        return LocalStackStack(STATE, progress=progress)
    return EmbeddedStack(STATE, progress=progress)
