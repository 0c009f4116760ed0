"""`make test`, `make test-containers` and `make test-console`: run pytest. The tests start their own servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CACHE, CHECKOUT, STATE
from infra.local.servers.group import destroy_servers_below
from infra.local.system.memory import memory_folder
from infra.local.system.programs import replace_process
from infra.local.system.runs import list_abandoned
from infra.local.toolchain import browser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress

PYTEST = (sys.executable, "-m", "pytest")
NO_TESTS_COLLECTED = 5
INTEGRATION = ("tests/integration", "layers/idempotency/tests/integration")
# One process more than processors, because many tests wait.
PARALLEL_OPTIONS = ("-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "loadscope", "--no-loadscope-reorder")


def test(arguments: Sequence[str], _progress: Progress) -> int:
    """Replace this process with pytest: all tests in parallel on the newest PostgreSQL, or `arguments` in one process.

    Servers and folders of killed test runs are removed first.
    """
    _remove_abandoned()
    if arguments:
        replace_process([*PYTEST, *arguments], _environment())
    replace_process([*PYTEST, *PARALLEL_OPTIONS], {**_environment(), "GRANTWIRE_TEST_POSTGRES": "newest"})


def test_containers(arguments: Sequence[str], progress: Progress) -> int:
    """Deploy to LocalStack, run every function with `sam local`, then the integration tests on servers from images.

    LocalStack runs as a process. Without a container engine, the second suite skips its tests with a message, and the
    third one does not run.
    """
    from infra.local.containers.engine import connect_engine  # noqa: PLC0415 - only in the development environment

    _remove_abandoned()
    code = _run_pytest("tests/localstack", *arguments)
    code = _run_pytest("tests/containers", *arguments) or code
    try:
        with connect_engine():
            pass
    except CommandError as error:
        progress.print_line(f"The integration tests did not run on containers. {error}")
        return code
    return code or _run_pytest(*INTEGRATION, *arguments, GRANTWIRE_TEST_BACKEND="containers")


def test_console(arguments: Sequence[str], progress: Progress) -> int:
    """Run the tests of the console in a browser, or say how to get one. UPDATE=1 writes the screenshots again."""
    if browser.find_browser() is None:
        progress.print_line(browser.MISSING)
        return 0
    _remove_abandoned()
    return _run_pytest("tests/browser", *arguments)


def _run_pytest(*arguments: str, **variables: str) -> int:
    """Return pytest's exit code; success if `arguments` select no test of a suite."""
    code = subprocess.run([*PYTEST, *arguments], env={**_environment(), **variables}, check=False).returncode
    return 0 if code == NO_TESTS_COLLECTED else code


def _remove_abandoned() -> None:
    """Remove the servers and folders of killed test runs."""
    for folder in (*list_abandoned(STATE / "test"), *list_abandoned(memory_folder())):
        destroy_servers_below(folder)
        shutil.rmtree(folder, ignore_errors=True)
    os.chdir(CHECKOUT)


def _environment() -> dict[str, str]:
    return {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(CACHE / "hypothesis")}
