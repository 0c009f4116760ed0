"""`make test` and `make test-containers`: run pytest. The tests start their own servers."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from infra.local.paths import CACHE, CHECKOUT, STATE
from infra.local.servers.group import destroy_servers_below
from infra.local.system.memory import memory_folder
from infra.local.system.programs import replace_process
from infra.local.system.runs import list_abandoned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

PARALLEL_OPTIONS = ("-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadscope", "--no-loadscope-reorder")


def test(arguments: Sequence[str], _progress: Progress) -> int:
    """Replace this process with pytest: all tests in parallel (up to four processes), or `arguments` in one process.

    Servers and folders of killed test runs are removed first.
    """
    for folder in (*list_abandoned(STATE / "test"), *list_abandoned(memory_folder())):
        destroy_servers_below(folder)
        shutil.rmtree(folder, ignore_errors=True)
    os.chdir(CHECKOUT)
    variables = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(CACHE / "hypothesis")}
    replace_process([sys.executable, "-m", "pytest", *(arguments or PARALLEL_OPTIONS)], variables)


def test_containers(arguments: Sequence[str], progress: Progress) -> int:
    """Run the tests that need a container engine; they are skipped, with a message, if none responds."""
    return test(["tests/containers", *arguments], progress)
