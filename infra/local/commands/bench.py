"""`make bench`: measure the performance, on separate servers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from infra.local.paths import CHECKOUT, PACKAGES
from infra.local.system.programs import replace_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress


def bench(arguments: Sequence[str], _progress: Progress) -> int:
    """Replace this process with the benchmark, with the layer on the path as on Lambda."""
    os.chdir(CHECKOUT)
    path = [*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    replace_process(
        [sys.executable, "-m", "tests.bench", *arguments], {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    )
