"""Smoke test of the benchmark: runs every section with the least effort; its results are meaningless."""

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

PATHS = ("grant", "replay", "query", "check", "relay", "bridge", "sweep", "expiry", "change feed")
# The targets of a full run, except those of the end-to-end section, which needs a deployed stack.
TARGETS = (
    "grant through the handler: .* of the limit",
    "replay through the handler against Powertools on Valkey",
    "grant, handler above its database call",
    "replay, handler above its database call",
    "query, handler above its database call",
    "check, median latency in times of the query",
    "check, .* rows",
    "grants in batches of 100 against single grants",
    "relay, one worker, .* of the limit",
    "relay, one worker, .* against pgqueuer",
    "relay against statement by statement",
    "bridge, one worker, .* of the limit",
    "bridge, one worker, .* against pgqueuer",
    "bridge against statement by statement",
    "relay, .* with a check",
    "bridge, .* with a check",
    "grant, .* with a check",
    "sweep of .* of the limit",
    "settled_through, .* rows",
    "grant with the index of the feed: .* of the limit",
    "grant, import time above empty handler",
    "grant, cold start with a secret above one without",
    "idle, always-on",
    "idle, economical",
)
TIMEOUT_SECONDS = 300.0

# A run that hangs is stopped by TIMEOUT_SECONDS, which also stops its servers; pytest's own timeout would not.
pytestmark = pytest.mark.timeout(2 * TIMEOUT_SECONDS)


def _bench(*arguments: str) -> tuple[int, str]:
    """Run the benchmark and return its exit code and output. After a timeout it gets SIGTERM and stops its servers."""
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
        output, _ = program.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        if process := identify(program.pid):
            stop_process(process, signal_number=signal.SIGTERM, timeout=60)
        pytest.fail(f"still running after {TIMEOUT_SECONDS:.0f} s: {program.communicate()[0]}")
    return program.returncode, output


def test_run_measures_every_path_and_draws_its_charts(tmp_path: Path) -> None:
    """X3: the page has a row for each path, its charts are well-formed SVG, and every target is listed."""
    page = tmp_path / "benchmarks.md"
    code, output = _bench("--output", str(page))
    assert code == 0, output
    text = page.read_text()
    assert "A smoke run" in text
    rows = re.findall(r"^\| ([^|]*) \|.*\| \d+\.\d\d \[[\d., ]+\] \|", text, re.MULTILINE)
    assert [path for path in PATHS if not any(path in row.lower() for row in rows)] == []
    assert [target for target in TARGETS if not re.search(rf"[✓✗] {target}", output)] == []
    charts = re.findall(r"\]\((benchmarks/[\w-]+\.svg)\)", text)
    assert len(charts) == len(set(charts)) > 1
    for chart in charts:
        assert ET.parse(tmp_path / chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - written by the benchmark
