from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_cli.app import build
from tests.support.fake_api import TOKEN, FakeApi, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON on standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error on standard error, with --json."""
        return json.loads(self.err.strip().splitlines()[-1])["error"]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """A fake installation."""
    yield from serve()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and current folder, without settings of the developer."""
    for name in [name for name in os.environ if name.startswith(("GRANTWIRE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir("/")  # the folder of the tests is in this checkout, whose stack may be up
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command in this process; standard output is a pipe, not a terminal."""

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            build()(list(arguments), prog_name="grantwire")
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def grantwire(run: Callable[..., Result], api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command against the fake installation."""
    monkeypatch.setenv("GRANTWIRE_API", api.url)
    monkeypatch.setenv("GRANTWIRE_TOKEN", TOKEN)
    return run
