"""The selection of a checkout's stack: embedded or on LocalStack, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.paths import STATE
from infra.local.stack.description import running_kind
from infra.local.stack.embedded import EmbeddedStack

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack

STACK_KINDS = ("embedded", "localstack")


def select_stack(kind: str, progress: Progress) -> DeployedStack:
    """Return the checkout's stack of one kind."""
    if kind == "localstack":
        from infra.local.stack.localstack import LocalStackStack  # noqa: PLC0415  # the SDK takes a second to import

        return LocalStackStack(STATE, progress=progress)
    return EmbeddedStack(STATE, progress=progress)


def current_stack(progress: Progress) -> DeployedStack:
    """Return the checkout's stack that is up, or the embedded one."""
    return select_stack(running_kind(STATE) or STACK_KINDS[0], progress)
