"""`make env`: the API address and the token as shell variables."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from infra.local.paths import CHECKOUT
from infra.local.stack.description import read_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def env(_arguments: Sequence[str], progress: Progress) -> int:
    """Print the variables that the requests in the README use."""
    description = read_description()
    variables = {
        "GRANTWIRE_API": description["api_url"],
        "GRANTWIRE_TOKEN": description["token"],
        "GRANTWIRE_CHECKOUT": str(CHECKOUT),  # by which the command recognises the local stack
    }
    for name, value in variables.items():
        progress.print_line(f"export {name}={shlex.quote(value)}")
    return 0
