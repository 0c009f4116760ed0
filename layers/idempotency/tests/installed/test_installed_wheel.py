"""C14, C15, C16: from an empty folder outside the checkout, install the wheel, create the schema, run the programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from infra.local.toolchain.wheel import build_wheel
from tests.support.environments import create_environment, find_python
from tests.support.paths import LIBRARY_HOME, ROOT
from tests.support.programs import LIBRARY_EXAMPLES, Program, list_programs
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

# What the programs use beside the library.
PACKAGES = (
    *("celery", "django", "fastapi", "httpx", "opentelemetry-sdk", "prometheus-client", "pydantic", "pytest"),
    "sqlalchemy",
)
EXTRAS = "postgres,redis,bloom,powertools,opentelemetry"
# No requirement without an extra, then the extras, the Python versions, the licence, and whether the package is typed.
METADATA = ["", "bloom opentelemetry postgres powertools redis", "<3.15,>=3.11", "MIT", "LICENSE", "True", ""]
STRANGERS = LIBRARY_HOME / "tests" / "strangers"
SUITE = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "grantwire_idempotency.conformance")

_LOCATION = """
import sys, grantwire_idempotency
print(grantwire_idempotency.__file__, *sys.path, sep="\\n")
"""

_METADATA = """
from importlib import metadata, resources
distribution = metadata.distribution("grantwire-idempotency")
print(*(requirement for requirement in distribution.requires or () if "extra ==" not in requirement), sep="\\n")
print(*distribution.metadata.get_all("Provides-Extra"))
print(distribution.metadata["Requires-Python"])
print(distribution.metadata["License-Expression"])
print(*distribution.metadata.get_all("License-File"))
print(resources.files("grantwire_idempotency").joinpath("py.typed").is_file())
"""

_STORE = """
from grantwire_idempotency.conformance.harness import MemoryHarness
from grantwire_idempotency import MemoryStore

class Forgetful(MemoryStore):
    def store_result(self, claim, result, ttl, order_ttl=None):
        super().store_result(claim, None, ttl, order_ttl)

class Harness(MemoryHarness):
    def reset(self):
        super().reset()
        self._store = Forgetful(clock=lambda: self._seconds)
"""


# What a beginner tries before any extra is installed.
_WITHOUT_EXTRAS = """
from grantwire_idempotency import *

for store in (MemoryStore(), SqliteStore("keys.db")):
    @idempotent(store, key=argument("order"), name="orders")
    def ship(order):
        print("ship", order)

    ship("o-1")
    ship("o-1")
try:
    from grantwire_idempotency import PostgresStore
except ImportError as error:
    print(error)
"""
SHIPPED_ONCE = "ship o-1\n"


class Project:
    """A folder with a fresh virtual environment; its programs get these variables alone."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environment = folder / "venv"
        self.python = self.environment / "bin" / "python"
        self.variables = {"PATH": os.defpath, "HOME": str(folder), **variables}

    def install(self, python: Path, extras: str = "", packages: tuple[str, ...] = ()) -> None:
        """Install the wheel with these extras, and the packages, at the versions of the lock."""
        wheel = build_wheel(self.folder / "wheel")
        create_environment(self.folder, [*packages, f"{wheel}[{extras}]" if extras else str(wheel)], python)

    def run(self, *command: str, check: bool = True) -> str:
        """Run Python with these arguments and return its output."""
        process = subprocess.run(
            [self.python, *command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        assert not check or process.returncode == 0, process.stderr + process.stdout
        return process.stdout


@pytest.mark.timeout(600)
@newest_postgres
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_installed_wheel_runs_the_programs_of_the_documentation(
    version: str, outside: Path, databases: Databases, valkey_server: ValkeyServer
) -> None:
    """C14, C15, C31: on each Python that is here: schema, programs, conformance suite, and the types of strangers."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    url = databases.empty()
    try:
        with Redis.from_url(valkey_server.url) as client:
            client.flushall()
        project = Project(outside, {"DATABASE_URL": url, "REDIS_URL": valkey_server.url})
        project.install(python, EXTRAS, PACKAGES)
        _check_location(project)
        assert project.run("-c", _METADATA).split("\n") == METADATA
        assert "applied tables/0001" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        assert "up to date" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        _check_programs(project)
        _check_conformance_suite(project)
        _check_strangers(project, version)
    finally:
        databases.drop(url)


def test_wheel_runs_without_extras(outside: Path) -> None:
    """C30: `import *` works, two stores need the standard library alone, and an error names what another one needs."""
    project = Project(outside, {})
    project.install(Path(sys.executable))
    output = project.run("-c", _WITHOUT_EXTRAS)
    assert output.startswith(2 * SHIPPED_ONCE)
    assert "PostgresStore requires the package psycopg" in output.removeprefix(2 * SHIPPED_ONCE)


def _check_location(project: Project) -> None:
    """The library is that of the wheel, and no path leads into the checkout."""
    location, *paths = project.run("-c", _LOCATION).splitlines()
    assert Path(location).resolve().is_relative_to(project.environment)
    assert [path for path in paths if path and Path(path).resolve().is_relative_to(ROOT)] == []


def _check_programs(project: Project) -> None:
    programs = list_programs(LIBRARY_EXAMPLES)
    assert {"lambda_sqs", "worker_redis", "web_fastapi"} <= {program.name for program in programs}
    for program in programs:
        copy = Program(Path(shutil.copy(program.path, project.folder)))
        assert copy.run(project.python, project.folder, project.variables) == program.expected_output, program.name


def _check_conformance_suite(project: Project) -> None:
    """C16: it passes for the memory store; for a store that forgets results, it shows what differs."""
    assert " passed" in project.run(*SUITE)
    (project.folder / "own_store.py").write_text(_STORE)
    project.variables |= {"IDEMPOTENCY_STORE": "own_store:Harness", "PYTHONPATH": str(project.folder)}
    report = project.run(*SUITE, check=False)
    assert "test_duplicate_gets_stored_result" in report
    assert "result=None" in report


def _check_strangers(project: Project, version: str) -> None:
    """C31: five programs that know the wheel alone run, and mypy and pyright accept them in their strict modes."""
    folder = Path(shutil.copytree(STRANGERS, project.folder / "strangers"))
    programs = sorted(folder.glob("*.py"))
    assert len(programs) == 5
    for program in programs:
        assert project.run(str(program)), program.name
    settings = {"typeCheckingMode": "strict", "pythonVersion": version}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    accepted = f"Success: no issues found in {len(programs)} source files"
    mypy = ("mypy", "--strict", "--python-version", version, "--python-executable", project.python)
    _run_tool(folder, *mypy, "--cache-dir", folder / "mypy", *programs, expected=accepted)
    if shutil.which("node"):  # pyright is a program for Node.js
        _run_tool(folder, "pyright", "--pythonpath", project.python, expected="0 errors, 0 warnings")


def _run_tool(folder: Path, tool: str, *arguments: str | Path, expected: str) -> None:
    """Run a tool of the development environment, with nothing of the checkout on its path."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [Path(sys.executable).with_name(tool), *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert expected in result.stdout, result.stdout + result.stderr
