"""The temporary directories of commands: in the state folder, and removed afterwards."""

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

PRINT_DIRECTORY = "import tempfile; print(tempfile.gettempdir())"


def _child_directory() -> Path:
    """Return the temporary directory of a child process."""
    command = [sys.executable, "-c", PRINT_DIRECTORY]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def _ended_process_id() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_command_and_its_programs_share_a_directory_that_is_removed_at_the_end(tmp_path: Path) -> None:
    """The checkout's path may contain a space. Only the owner can enter the directory."""
    parent, before = tmp_path / "with space" / "tmp", os.environ[temporary.VARIABLE]
    with temporary_directory(parent) as folder:
        assert folder == run_folder(parent) == Path(tempfile.gettempdir()) == _child_directory()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        Path(tempfile.mkdtemp()).joinpath("left").touch()
    assert list(parent.iterdir()) == []
    assert os.environ[temporary.VARIABLE] == before == tempfile.gettempdir()


def test_unset_variable_is_unset_again_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the process is restored."""
    monkeypatch.delenv(temporary.VARIABLE)
    with temporary_directory(tmp_path):
        assert temporary.VARIABLE in os.environ
    assert temporary.VARIABLE not in os.environ
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_directory_of_a_killed_command_is_removed_and_that_of_a_running_one_is_kept(tmp_path: Path) -> None:
    """A folder whose name contains no process id is also kept."""
    killed = tmp_path / f"run-{_ended_process_id()}"
    running, other = tmp_path / f"run-{os.getppid()}", tmp_path / "run-without-process-id"
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
def test_directory_is_removed_however_the_command_ends(
    outcome: int | BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make up` may fail during a build, or be interrupted."""
    seen: list[Path] = []

    def command(*_: object) -> int:
        seen.append(_child_directory())
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
def test_command_without_work_creates_no_state_folder_in_a_new_checkout(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that only reads leaves no files."""
    monkeypatch.setattr(program, "STATE", tmp_path / "absent")
    monkeypatch.setattr(program, "temporary_directory", lambda: pytest.fail("a folder was created"))
    monkeypatch.setattr(program, "_enter_environment", lambda *_: None)
    monkeypatch.setattr(program, "_load_function", lambda _name: lambda *_: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert program.main([command]) == 0


def test_temporary_files_of_tests_are_in_the_folder_of_the_run(tmp_path: Path) -> None:
    """This holds for pytest and for programs that tests start. Parallel processes share the folder of the first."""
    assert _child_directory() == STATE / "tmp"
    assert tmp_path.is_relative_to(STATE.parent)
