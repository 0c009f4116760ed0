"""C30: mypy and pyright report the mistakes of a stranger, and nothing else, in their strict modes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import LIBRARY, LIBRARY_HOME

MISTAKES = LIBRARY_HOME / "tests" / "refused" / "mistakes.py"
REFUSED = {number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if line.endswith("# refused")}


def run_tool(tool: str, folder: Path, *arguments: str | Path) -> str:
    """Run a tool of the development environment on a copy of the program, and return its output."""
    shutil.copy(MISTAKES, folder)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "MYPYPATH": str(LIBRARY)}
    command = [Path(sys.executable).with_name(tool), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_mypy_reports_each_mistake(tmp_path: Path) -> None:
    """C30: where the mistake is made."""
    output = run_tool(
        "mypy", tmp_path, "--strict", "--python-executable", sys.executable, "--cache-dir", tmp_path, MISTAKES
    )
    assert {int(match[1]) for match in re.finditer(r"mistakes\.py:(\d+): error", output)} == REFUSED, output


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright is a program for Node.js")
def test_pyright_reports_each_mistake(tmp_path: Path) -> None:
    """C30: the same lines."""
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(LIBRARY)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    output = run_tool("pyright", tmp_path, "--pythonpath", sys.executable, "--outputjson", "mistakes.py")
    found = json.loads(output)["generalDiagnostics"]
    assert {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"} == REFUSED, output
