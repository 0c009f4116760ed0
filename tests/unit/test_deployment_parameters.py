"""What SAM is told, and how: parameters hold passwords, and anybody can read a command line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.deployment.sam import Deployment
from infra.local.errors import CommandError
from infra.local.system import programs
from infra.local.system.temporary import temporary_directory

if TYPE_CHECKING:
    from infra.local.system.processes import Launch

PARAMETERS = {"DatabaseUrl": "postgresql://u:hunter2@h/d?a=b c", "NatsUrl": 'nats://u:hunter"2@h', "Stage": "local"}


class Nowhere:
    """An AWS that takes everything."""

    url = "http://127.0.0.1:9"

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """None."""
        return {stack: ""}

    def create_bucket(self, name: str) -> None:
        """Not really."""

    def reset(self) -> None:
        """Nothing to forget."""


class Sam:
    """Takes down what it would have been started with."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.words: list[str] = []
        self.environment: dict[str, str] = {}
        self.parameters: Any = None
        self.mode = 0
        self.file = Path()

    def __call__(self, launch: Launch, **_: object) -> None:
        """As `programs.run`."""
        self.words = [str(word) for word in launch.command]
        self.environment = dict(launch.environment)
        self.file = Path(self.words[-1].removeprefix("file://"))
        self.mode = stat.S_IMODE(self.file.stat().st_mode)
        self.parameters = yaml.safe_load(self.file.read_text())
        if self.fails:
            raise CommandError("sam deploy failed.")


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_reach_sam_in_a_file_of_ours(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as they are, readable for us alone, and gone afterwards, also when the deployment fails."""
    sam = Sam(fails=fails)
    monkeypatch.setattr(programs, "run", sam)
    made = Deployment(tmp_path, Nowhere(), PARAMETERS)
    try:
        made.deploy()
    except CommandError:
        assert fails
    assert sam.parameters == PARAMETERS
    assert sam.mode == 0o600
    assert not sam.file.exists()
    assert "deploy" in sam.words
    assert [one for one in (*sam.words, *sam.environment.values()) if "hunter" in one] == []


def test_sam_writes_where_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves a folder for each function that it builds, which is removed with the command's own."""
    sam = Sam()
    monkeypatch.setattr(programs, "run", sam)
    with temporary_directory(tmp_path / "tmp") as folder:
        Deployment(tmp_path, Nowhere(), PARAMETERS).deploy()
    assert sam.environment["TMPDIR"] == str(folder)
