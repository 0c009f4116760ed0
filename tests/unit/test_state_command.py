"""T3: the state of the local stack, which `grantwire status` shows."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.commands.state import state as print_state
from infra.local.progress import Progress
from infra.local.stack import selection
from tests.support.paths import ROOT

SERVERS = ("postgres", "nats", "emulator")


@pytest.mark.parametrize("dead", [None, *SERVERS, "api"])
def test_exit_code_says_whether_everything_runs(dead: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: 1 if one server or the API is down; the API can respond without NATS."""
    servers = {
        name: SimpleNamespace(name=name, pid=1, port=2, is_alive=lambda name=name: name != dead) for name in SERVERS
    }
    stack = SimpleNamespace(
        servers=list(servers.values()),
        aws=servers["emulator"],
        is_healthy=lambda: dead != "api",
        api_url="http://api",
        database_url="invalid",
    )

    def current_stack(_progress: Progress) -> Any:
        return stack

    monkeypatch.setattr(selection, "current_stack", current_stack)
    output = io.StringIO()
    assert print_state([], Progress(output)) == (0 if dead is None else 1)
    state = json.loads(output.getvalue())
    alive = {server["name"]: server["alive"] for server in state["servers"]}
    assert alive == {name: name != dead for name in SERVERS}
    assert (state["healthy"], state["api_url"]) == (dead is None, None if dead in {"api", "emulator"} else "http://api")


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_make_runs_the_command_of_operators(command: str) -> None:
    """T3, T4: one set of texts; the checkout selects the installation, not the variables of another one."""
    program = "import sys; from infra.local.commands import grantwire; from infra.local.progress import Progress"
    program += f"; sys.exit(grantwire.{command}(['--help'], Progress()))"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert f"grantwire {command}" in process.stdout
