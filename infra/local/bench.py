"""`make bench`: how fast it is, measured on servers of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from infra.local.environments import CHECKOUT, PACKAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def bench(arguments: Sequence[str], _progress: Progress) -> int:
    """Become the benchmark, which calls the functions as Lambda would: with the layer on the path."""
    os.chdir(CHECKOUT)
    sys.stdout.flush()
    path = [*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "tests.bench", *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": os.pathsep.join(path)})  # noqa: S606  # no shell
