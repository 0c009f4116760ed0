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

from infra.local.system.processes import identify, stop_process
from tests.support.paths import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PATHS = ("grant", "replay", "query", "relay", "bridge", "sweep")
# How the targets of a whole run begin; the way from commit to stream takes a deployed stack, and is left out here.
TARGETS = (
    "grant through the handler: .* of the limit",
    "replay through the handler against Powertools on Valkey",
    "grant, handler above its database call",
    "replay, handler above its database call",
    "query, handler above its database call",
    "relay, one worker, .* of the limit",
    "relay, one worker, .* against pgqueuer",
    "relay against statement by statement",
    "bridge, one worker, .* of the limit",
    "bridge, one worker, .* against pgqueuer",
    "bridge against statement by statement",
    "sweep of .* of the limit",
    "grant's import above the empty handler's",
)
PATIENCE = 300.0

# What stops a run that hangs is the patience above, which also ends its servers.
pytestmark = pytest.mark.timeout(2 * PATIENCE)


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
            stop_process(process, signal_number=signal.SIGTERM, timeout=60)
        pytest.fail(f"still running after {PATIENCE:.0f} s: {program.communicate()[0]}")
    return program.returncode, said


def test_a_run_measures_every_path_and_draws_its_charts(tmp_path: Path) -> None:
    """The page has a row for each path and every chart that it shows, well-formed; the targets are met or missed."""
    page = tmp_path / "benchmarks.md"
    code, said = _bench("--output", str(page))
    assert code == 0, said
    text = page.read_text()
    assert "A smoke run" in text
    rows = re.findall(r"^\| ([^|]*) \|.*\| \d+\.\d\d \[[\d., ]+\] \|", text, re.MULTILINE)
    assert [path for path in PATHS if not any(path in row.lower() for row in rows)] == []
    assert [target for target in TARGETS if not re.search(rf"[✓✗] {target}", said)] == []
    charts = re.findall(r"\]\((benchmarks/[\w-]+\.svg)\)", text)
    assert len(charts) == len(set(charts)) > 1
    for chart in charts:
        assert ET.parse(tmp_path / chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - ours
