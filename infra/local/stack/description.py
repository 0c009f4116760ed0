"""`.grantwire/stack.json`: what `make up` tells scripts about the running stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.system import files

if TYPE_CHECKING:
    from pathlib import Path


def read_description(state: Path = STATE) -> dict[str, Any]:
    """Read it; a `CommandError` if there is none."""
    found = files.read_record(state / DESCRIPTION)
    if not found:
        raise CommandError("The stack is not up.", hint="Start it with `make up`.")
    return found
