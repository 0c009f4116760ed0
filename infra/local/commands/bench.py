"""`make bench`: how fast it is, measured on servers of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from infra.local.paths import CHECKOUT, PACKAGES
from infra.local.system.programs import become

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def bench(arguments: Sequence[str], _progress: Progress) -> int:
    """Become the benchmark, which calls the functions as Lambda would: with the layer on the path."""
    os.chdir(CHECKOUT)
    path = [*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    become([sys.executable, "-m", "tests.bench", *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(path)})
