"""V9: a failed test never hides the report of another one, and is not reported as the failure of another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SUITE = "tests/support/failing_suite.py"


def test_open_sockets_of_failed_tests_are_no_failure_of_other_tests(tmp_path: Path) -> None:
    """Every report is printed, once. A warning about the socket names the test that left it open."""
    cache = f"cache_dir={tmp_path}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = (sys.executable, "-m", "pytest", "-rA", "-o", cache, "-n", "1", SUITE)
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert set(re.findall(rf"^(PASSED|FAILED|ERROR) {SUITE}::(\w+)", run.stdout, re.MULTILINE)) == {
        ("FAILED", "test_fails_with_local_sockets"),
        ("PASSED", "test_passes_after_a_failure"),
        ("FAILED", "test_fails_with_a_local_client"),
        ("PASSED", "test_passes_and_collects_garbage"),
        ("FAILED", "test_fails_with_a_client_in_a_fixture"),
        ("ERROR", "test_fails_in_its_setup"),
        ("PASSED", "test_passes_and_collects_garbage_after_a_failed_setup"),
        ("FAILED", "test_fails_at_the_end"),
    }, run.stdout
    _, _, warnings = run.stdout.partition("= warnings summary =")
    assert set(re.findall(rf"^{SUITE}::(\w+)$", warnings, re.MULTILINE)) == {
        "test_fails_with_local_sockets",
        "test_fails_with_a_local_client",
        "test_fails_with_a_client_in_a_fixture",
        "test_fails_in_its_setup",
        "test_fails_at_the_end",
    }
    assert re.search(r"^=+ 4 failed, 3 passed, \d+ warnings?, 1 error in ", run.stdout, re.MULTILINE)


def test_no_plugin_of_schemathesis_runs_at_the_end(pytestconfig: pytest.Config) -> None:
    """If a plugin's `pytest_sessionfinish` raises an error, pytest prints no report at all."""
    assert not pytestconfig.pluginmanager.has_plugin("schemathesis")
