"""`.grantwire/stack.json`: the addresses and the token of the running stack, written by `make up` for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.system import files

if TYPE_CHECKING:
    from pathlib import Path


def running_kind(state: Path) -> str | None:
    """Return the kind of the stack that is up, or None."""
    kind = files.read_record(state / DESCRIPTION).get("stack")
    return None if kind is None else str(kind)


def read_description(state: Path = STATE) -> dict[str, Any]:
    """Return the description of the running stack.

    Raises CommandError if no stack is up.
    """
    description = files.read_record(state / DESCRIPTION)
    if not description:
        raise CommandError("The stack is not up.", hint="Start it with `make up`.")
    return description
