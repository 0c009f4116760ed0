"""C14, C15, C16: from an empty folder, install the wheel, create the schema and run the documentation's programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.local.toolchain.wheel import build_wheel
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

PROGRAMS = ROOT / "docs" / "examples"
PACKAGES = ("fastapi", "httpx", "prometheus-client", "pydantic", "pytest", "sqlalchemy")

_WEB = """
from fastapi.testclient import TestClient
import web_fastapi

with TestClient(web_fastapi.app) as client:
    for total in (5, 5, 6):
        response = client.post("/orders", json={"total": total}, headers={"Idempotency-Key": "k1", "X-User": "ann"})
        print(response.status_code, response.headers.get("idempotent-replayed"), response.text)
"""

_STORE = """
from grantwire_idempotency.conformance.harness import MemoryHarness
from grantwire_idempotency.stores.memory import MemoryStore

class Forgetful(MemoryStore):
    def store_result(self, claim, result, ttl, order_ttl=None):
        super().store_result(claim, None, ttl, order_ttl)

class Harness(MemoryHarness):
    def reset(self):
        super().reset()
        self._store = Forgetful(clock=lambda: self._seconds)
"""


class Project:
    """An empty folder outside the checkout's packages, with a fresh virtual environment."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.variables = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}

    def install(self) -> None:
        """Install the wheel with its extras, and what the programs use, at the versions of the lock."""
        wheel = build_wheel(self.folder / "wheel")
        lock = (ROOT / "requirements" / "development.txt").read_text()
        pins = re.findall(r"^[\w.\[\]-]+==[^\s;\\]+", lock, re.MULTILINE)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(pins))
        packages = f"{wheel}[postgres,redis,bloom,powertools]"
        uv = Path(sys.executable).with_name("uv")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for command in (
            ["venv", "--quiet", "--python", sys.executable, str(self.folder / "venv")],
            ["pip", "install", "--quiet", "--python", str(self.python), "-c", str(constraints), *PACKAGES, packages],
        ):
            subprocess.run([uv, *command], cwd=self.folder, env=environment, check=True)

    def run(self, *command: str, check: bool = True) -> str:
        """Run Python with these arguments and return its output."""
        process = subprocess.run(
            [self.python, *command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        assert not check or process.returncode == 0, process.stderr + process.stdout
        return process.stdout


@pytest.mark.timeout(600)
def test_installed_wheel_runs_the_programs_of_the_documentation(
    tmp_path: Path, databases: Databases, valkey_server: ValkeyServer
) -> None:
    """C14, C15: wheel, schema command, three programs and three examples of own parts; nothing of the checkout."""
    url = databases.empty()
    try:
        project = Project(tmp_path, {"DATABASE_URL": url, "REDIS_URL": valkey_server.url})
        project.install()
        for program in PROGRAMS.glob("*.py"):
            (tmp_path / program.name).write_text(program.read_text())
        location = project.run("-c", "import grantwire_idempotency; print(grantwire_idempotency.__file__)")
        assert location.startswith(str(tmp_path))
        assert "applied tables/0001" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        assert "up to date" in project.run("-m", "grantwire_idempotency", "schema", "--apply")
        labels = project.run("lambda_sqs.py").splitlines()
        assert labels == ["label for o-1", "label for o-2", "{'batchItemFailures': []}"]
        assert project.run("worker_redis.py").splitlines() == ["mail for 2026-1", "mail for 2026-2"]
        first, again, conflict = project.run("-c", _WEB).splitlines()
        assert (first, again) == ('201 None {"order_id": 1}', '201 true {"order_id": 1}')
        assert conflict.startswith("409 ")
        assert 'idempotency_check_total{job="orders",result="duplicate"} 1.0' in project.run("prometheus_metrics.py")
        assert project.run("sqlalchemy_rows.py").splitlines() == ["True False", "1"]
        assert project.run("pydantic_results.py").count("total=5") == 2
        (tmp_path / "pytest.ini").write_text("[pytest]\n")  # not the settings of the checkout
        suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "grantwire_idempotency.conformance")
        assert " passed" in project.run(*suite)
        (tmp_path / "own_store.py").write_text(_STORE)
        project.variables |= {"IDEMPOTENCY_STORE": "own_store:Harness", "PYTHONPATH": str(tmp_path)}
        assert "test_duplicate_gets_stored_result" in project.run(*suite, check=False)
    finally:
        databases.drop(url)
