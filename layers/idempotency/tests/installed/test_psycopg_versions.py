"""C26: the oldest psycopg that the library accepts; older ones do not resume a wait that has no response."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import LIBRARY_HOME, ROOT

TESTS = LIBRARY_HOME / "tests" / "integration" / "test_unresponsive_postgres.py"


@pytest.mark.timeout(600)
def test_waits_end_with_the_oldest_client(tmp_path: Path) -> None:
    """C26: the tests of all waits pass with the lower bound of the distribution."""
    match = re.search(r"psycopg\[binary\]>=([\d.]+)", (LIBRARY_HOME / "pyproject.toml").read_text())
    assert match is not None
    folder = tmp_path / "packages"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    uv = str(Path(sys.executable).with_name("uv"))
    package = f"psycopg[binary]=={match[1]}"
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), package]
    subprocess.run(command, env=environment, check=True)
    variables = {**environment, "PYTHONPATH": str(folder)}
    version = "import psycopg; print(psycopg.__version__)"
    result = subprocess.run(
        [sys.executable, "-c", version], env=variables, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout.strip() == match[1]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", str(TESTS)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout
