"""T3: the wheel of the grantwire command, installed outside the checkout, without the code of the service."""

from __future__ import annotations

import os
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from infra.local.toolchain.wheel import COMMAND_LINE, build_wheel
from tests.support.environments import create_environment
from tests.support.fake_api import TOKEN, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fake_api import FakeApi

IMPORTABLE = "import importlib.util as u; print([n for n in {names!r} if u.find_spec(n)])"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """A fake installation."""
    yield from serve()


@pytest.mark.timeout(600)
def test_installed_command_operates_an_installation(outside: Path, api: FakeApi) -> None:
    """T3: pip installs the command and its dependencies only; it grants, lists and prints its help."""
    wheel = build_wheel(outside / "wheel", COMMAND_LINE)
    with zipfile.ZipFile(wheel) as archive:
        assert "grantwire_cli/entitlement_event.binpb" in archive.namelist()
        assert {name.split("/")[0].split("-")[0] for name in archive.namelist()} == {"grantwire_cli"}
    create_environment(outside, [str(wheel)])
    variables = {"PATH": os.defpath, "HOME": str(outside), "GRANTWIRE_API": api.url, "GRANTWIRE_TOKEN": TOKEN}

    def run(*command: str, code: int = 0) -> str:
        program = [str(outside / "venv" / "bin" / command[0]), *command[1:]]
        result = subprocess.run(program, cwd=outside, env=variables, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr

    assert run("grantwire", "--version").startswith("grantwire ")
    assert "Exit codes" in run("grantwire", "--help")
    run("grantwire", "entitlements", "grant", "u_1", "item1", "--reason", "purchase")
    assert "item1                ACTIVE         1" in run("grantwire", "entitlements", "list", "u_1")
    absent = ["grantwire", "grantwire_idempotency", "infra", "boto3", "nats", "psycopg"]
    assert run("python", "-c", IMPORTABLE.format(names=absent)).strip() == "[]"
    assert "grantwire-cli[aws]" in run("grantwire", "status", "--stack-name", "x", code=1)
    assert "not in a checkout" in run("grantwire", "up", code=1)
