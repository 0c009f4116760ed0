"""`make test` and `make test-containers`: become pytest; the tests bring up servers of their own."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from infra.local.paths import CACHE, CHECKOUT, STATE
from infra.local.servers.group import stop_below
from infra.local.system.memory import memory
from infra.local.system.programs import become
from infra.local.system.runs import abandoned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

SEVERAL_PROCESSES = ("-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadscope", "--no-loadscope-reorder")


def test(arguments: Sequence[str], _progress: Progress) -> int:
    """Run all tests in as many processes as there are processors, up to four; what is asked for by name, in one."""
    for folder in (*abandoned(STATE / "test"), *abandoned(memory())):
        stop_below(folder)
        shutil.rmtree(folder, ignore_errors=True)
    os.chdir(CHECKOUT)
    variables = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(CACHE / "hypothesis")}
    become([sys.executable, "-m", "pytest", *(arguments or SEVERAL_PROCESSES)], variables)


def test_containers(arguments: Sequence[str], progress: Progress) -> int:
    """Run the tests that need a container engine; each is skipped, and says so, where none answers."""
    return test(["tests/containers", *arguments], progress)
