"""C14, C15, C16: from an empty folder outside the checkout, install the wheel, create the schema, run the programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.local.toolchain.wheel import build_wheel
from tests.support.paths import ROOT
from tests.support.programs import LIBRARY_EXAMPLES, Program, list_programs
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

# What the programs use beside the library.
PACKAGES = ("fastapi", "httpx", "prometheus-client", "pydantic", "pytest", "sqlalchemy")
# No requirement without an extra, then the extras, the Python versions, and whether the package is typed.
METADATA = ["", "bloom postgres powertools redis", "<3.14,>=3.11", "True", ""]
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


class Project:
    """A folder with a fresh virtual environment; its programs get these variables alone."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environment = folder / "venv"
        self.python = self.environment / "bin" / "python"
        self.variables = {"PATH": os.defpath, "HOME": str(folder), **variables}

    def install(self) -> None:
        """Install the wheel with its extras by pip, and what the programs use, at the versions of the lock."""
        wheel = build_wheel(self.folder / "wheel")
        lock = (ROOT / "requirements" / "development.txt").read_text()
        pins = re.findall(r"^[\w.\[\]-]+==[^\s;\\]+", lock, re.MULTILINE)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(pins))
        packages = f"{wheel}[postgres,redis,bloom,powertools]"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for command in (
            [sys.executable, "-m", "venv", str(self.environment)],
            [str(self.python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *PACKAGES, packages],
        ):
            subprocess.run(command, cwd=self.folder, env=environment, check=True)

    def run(self, *command: str, check: bool = True) -> str:
        """Run Python with these arguments and return its output."""
        process = subprocess.run(
            [self.python, *command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        assert not check or process.returncode == 0, process.stderr + process.stdout
        return process.stdout


@pytest.mark.timeout(600)
@newest_postgres
def test_installed_wheel_runs_the_programs_of_the_documentation(
    outside: Path, databases: Databases, valkey_server: ValkeyServer
) -> None:
    """C14, C15: wheel, schema command, every program of the documentation, and the conformance suite."""
    url = databases.empty()
    try:
        project = Project(outside, {"DATABASE_URL": url, "REDIS_URL": valkey_server.url})
        project.install()
        _check_location(project)
        assert project.run("-c", _METADATA).split("\n") == METADATA
        assert "applied tables/0001" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        assert "up to date" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        _check_programs(project)
        _check_conformance_suite(project)
    finally:
        databases.drop(url)


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
