"""`make check` runs two checks at the same time, and its last lines say what failed."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from infra.local.commands import check
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.system.processes import identify, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Creates its own file, and waits for that of the other check.
MEET = """
import sys, time, pathlib
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
PYTEST_LOG = """
print("E   assert 1 == 2")
print("=== short test summary info ===")
print("SKIPPED [1] tests/a.py: no browser")
print("FAILED tests/a.py::test_a - assert 1 == 2")
print("1 failed, 7 passed, 1 skipped in 2.50s")
print("warning at the end")
raise SystemExit(1)
"""


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "STATE", tmp_path)
    monkeypatch.setattr(check, "AT_ONCE", 2)


def run(monkeypatch: pytest.MonkeyPatch, checks: Mapping[str, Sequence[str]], *names: str) -> tuple[int, list[str]]:
    """Run these checks in place of the real ones; return the exit code and the lines of standard output."""
    monkeypatch.setattr(check, "CHECKS", checks)
    output = io.StringIO()
    return check.check(names, Progress(output)), output.getvalue().splitlines()


def test_two_checks_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of these two ends only after the other one has started."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    checks = {"one": ("python", "-c", MEET, one, two), "two": ("python", "-c", MEET, two, one)}
    code, lines = run(monkeypatch, checks)
    assert (code, lines[-1]) == (0, "All checks passed.")
    assert sum(line.startswith("✓") for line in lines) == 2


def test_last_lines_say_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of pytest, or the end of another log; checks after a failure also run."""
    checks = {
        "tests": ("python", "-c", PYTEST_LOG),
        "types": ("python", "-c", "print('a.py:1: error'); print(); raise SystemExit(2)"),
        "style": ("python", "-c", ""),
    }
    code, lines = run(monkeypatch, checks)
    assert code == 1
    assert lines[-9:] == [
        "",
        "tests failed:",
        "    FAILED tests/a.py::test_a - assert 1 == 2",
        "    1 failed, 7 passed, 1 skipped in 2.50s",
        "",
        "types failed:",
        "    a.py:1: error",
        "",
        "Failed: tests, types",
    ]
    assert any(line.startswith("✓ style") for line in lines)
    assert run(monkeypatch, checks, "style")[0] == 0


def test_interrupt_stops_the_running_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program keeps running after Ctrl-C."""
    pid = tmp_path / "pid"
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '\\n'); time.sleep(600)"

    def interrupt(_seconds: float) -> None:
        assert wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"), 60)
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, {"slow": ("python", "-c", program, str(pid))})
    assert identify(int(pid.read_text())) is None


def test_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing mistake runs nothing, and must not look like success."""
    with pytest.raises(CommandError, match="No check is named tipes") as raised:
        run(monkeypatch, {"types": ("python", "-c", "")}, "types", "tipes")
    assert raised.value.hint.startswith("The checks are: types, ")
