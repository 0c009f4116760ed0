"""Temporary directories of commands: in the state folder, and gone afterwards."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infra.local import main as program
from infra.local.errors import CommandError
from infra.local.system import temporary
from infra.local.system.runs import list_abandoned, run_folder
from infra.local.system.temporary import temporary_directory
from tests.support.run import STATE

ASK = "import tempfile; print(tempfile.gettempdir())"


def _asked() -> Path:
    """Where a program that we start puts its temporary files."""
    return Path(subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.strip())


def _ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_a_command_and_its_programs_share_a_folder_that_ends_with_the_command(tmp_path: Path) -> None:
    """Also where the checkout's path has a space; nobody else can enter it."""
    parent, before = tmp_path / "with space" / "tmp", os.environ[temporary.VARIABLE]
    with temporary_directory(parent) as folder:
        assert folder == run_folder(parent) == Path(tempfile.gettempdir()) == _asked()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        Path(tempfile.mkdtemp()).joinpath("left").touch()
    assert list(parent.iterdir()) == []
    assert os.environ[temporary.VARIABLE] == before == tempfile.gettempdir()


def test_a_person_without_the_variable_has_none_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process goes on as it was."""
    monkeypatch.delenv(temporary.VARIABLE)
    with temporary_directory(tmp_path):
        assert temporary.VARIABLE in os.environ
    assert temporary.VARIABLE not in os.environ
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_what_a_killed_command_left_is_removed_and_a_running_one_keeps_its_own(tmp_path: Path) -> None:
    """And whatever is not named by a process is not ours to remove."""
    killed = tmp_path / f"run-{_ended_process()}"
    running, other = tmp_path / f"run-{os.getppid()}", tmp_path / "run-of-somebody"
    for folder in (killed, running, other):
        folder.joinpath("deep").mkdir(parents=True)
    assert list(list_abandoned(tmp_path)) == [killed]
    with temporary_directory(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([running, other])


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(0, 0), (CommandError("expected"), 1), (KeyboardInterrupt(), program.EXIT_INTERRUPTED)],
    ids=["done", "failed", "interrupted"],
)
def test_every_end_of_a_command_removes_its_folder(
    outcome: int | BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make up` may fail in the middle of a build, or be interrupted."""
    seen: list[Path] = []

    def command(*_: object) -> int:
        seen.append(_asked())
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(program, "STATE", tmp_path)
    monkeypatch.setattr(program, "temporary_directory", lambda: temporary_directory(tmp_path / "tmp"))
    monkeypatch.setattr(program, "_load_function", lambda _name: command)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert program.main(["down"]) == code
    assert seen == [run_folder(tmp_path / "tmp")]
    assert not seen[0].exists()


@pytest.mark.parametrize("command", ["down", "env", "status"])
def test_a_fresh_checkout_gets_no_state_folder_by_a_command_that_has_nothing_to_do(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever only looks leaves no trace."""
    monkeypatch.setattr(program, "STATE", tmp_path / "absent")
    monkeypatch.setattr(program, "temporary_directory", lambda: pytest.fail("a folder was made"))
    monkeypatch.setattr(program, "_enter_environment", lambda *_: None)
    monkeypatch.setattr(program, "_load_function", lambda _name: lambda *_: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert program.main([command]) == 0


def test_the_tests_own_files_are_in_the_run_s_folder(tmp_path: Path) -> None:
    """pytest's, and those of programs that tests start; of a run in several processes, in the first one's."""
    assert _asked() == STATE / "tmp"
    assert tmp_path.is_relative_to(STATE.parent)
