"""Deployment parameters reach SAM in a private file, because every local user can read a command line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.deployment.sam import Deployment
from infra.local.deployment.target import own_target
from infra.local.deployment.template import declared_parameters
from infra.local.errors import CommandError
from infra.local.system import programs
from infra.local.system.temporary import temporary_directory

if TYPE_CHECKING:
    from infra.local.system.processes import Launch

PARAMETERS = {"DatabaseUrl": "postgresql://u:hunter2@h/d?a=b c", "NatsUrl": 'nats://u:hunter"2@h', "Stage": "local"}


class FakeAws:
    """An AWS that accepts every call."""

    url = "http://127.0.0.1:9"
    access_key = "key"

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Return empty outputs."""
        return {stack: ""}

    def create_bucket(self, name: str) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""


class FakeSam:
    """Records the command, the environment and the parameters of SAM."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.arguments: list[str] = []
        self.environment: dict[str, str] = {}
        self.parameters: Any = None
        self.mode = 0
        self.file = Path()

    def __call__(self, launch: Launch, **_: object) -> None:
        """Replace `programs.run`."""
        self.arguments = [str(argument) for argument in launch.command]
        self.environment = dict(launch.environment)
        self.file = Path(self.arguments[-1].removeprefix("file://"))
        self.mode = stat.S_IMODE(self.file.stat().st_mode)
        self.parameters = yaml.safe_load(self.file.read_text())
        if self.fails:
            raise CommandError("sam deploy failed.")


@pytest.mark.parametrize("fails", [False, True])
def test_parameters_are_passed_in_a_private_temporary_file(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are unchanged. The file has mode 0600 and is removed, also if the deployment fails."""
    sam = FakeSam(fails=fails)
    monkeypatch.setattr(programs, "run", sam)
    deployment = Deployment(tmp_path, FakeAws(), PARAMETERS)
    try:
        deployment.deploy()
    except CommandError:
        assert fails
    # SAM would keep the value of the deployment before for a parameter that is not given: WEBHOOK=off is the default.
    assert sam.parameters == declared_parameters() | PARAMETERS | own_target().parameters
    assert sam.parameters["NotificationSender"] == "log"
    assert sam.mode == 0o600
    assert not sam.file.exists()
    assert "deploy" in sam.arguments
    assert [text for text in (*sam.arguments, *sam.environment.values()) if "hunter" in text] == []


def test_sam_uses_the_temporary_directory_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAM leaves a folder for each function that it builds; it is removed with the directory."""
    sam = FakeSam()
    monkeypatch.setattr(programs, "run", sam)
    with temporary_directory(tmp_path / "tmp") as folder:
        Deployment(tmp_path, FakeAws(), PARAMETERS).deploy()
    assert sam.environment["TMPDIR"] == str(folder)
