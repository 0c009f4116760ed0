"""The benchmark works: every section with the least effort, so that only its figures are worthless."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from infra.local.system.processes import end, identify
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PATHS = ("grant", "replay", "query", "relay", "bridge", "sweep")
PATIENCE = 300.0


def _bench(*arguments: str) -> tuple[int, str]:
    """Its exit code and what it said; if it takes too long, it is asked to end, so that it ends its servers."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.bench", "--smoke", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = program.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        if process := identify(program.pid):
            end(process, first=signal.SIGTERM, within=60)
        pytest.fail(f"still running after {PATIENCE:.0f} s: {program.communicate()[0]}")
    return program.returncode, said


def test_a_run_measures_every_path_and_draws_its_charts(tmp_path: Path) -> None:
    """The page has a row for each path, and every chart that it shows is there and well-formed."""
    page = tmp_path / "benchmarks.md"
    code, said = _bench("--output", str(page))
    assert code == 0, said
    text = page.read_text()
    assert "A smoke run" in text
    rows = re.findall(r"^\| ([^|]*) \|.*\| \d\.\d\d [✓✗] \| \d\.\d\d [✓✗] \|", text, re.MULTILINE)
    assert [path for path in PATHS if not any(path in row.lower() for row in rows)] == []
    charts = re.findall(r"\]\((benchmarks/[\w-]+\.svg)\)", text)
    assert len(charts) == len(set(charts)) > 1
    for chart in charts:
        assert ET.parse(tmp_path / chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - ours
