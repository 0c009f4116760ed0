"""T3: `make status` fails unless everything runs."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.commands.status import status
from infra.local.progress import Progress
from infra.local.stack import selection

SERVERS = ("postgres", "nats", "emulator")


@pytest.mark.parametrize("dead", [None, *SERVERS, "api"])
@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_exit_code_says_whether_everything_runs(
    dead: str | None, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert status(arguments, Progress(output)) == (0 if dead is None else 1)
    if arguments:
        state = json.loads(output.getvalue())
        alive = {server["name"]: server["alive"] for server in state["servers"]}
        assert alive == {name: name != dead for name in SERVERS}
        assert (state["healthy"], state["api_url"]) == (
            dead is None,
            None if dead in {"api", "emulator"} else "http://api",
        )
