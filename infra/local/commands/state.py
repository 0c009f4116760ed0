"""The state of each server and the API, the backlog and the open dead letters, for `grantwire status`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from infra.local.servers.group import TITLES
from infra.local.stack import selection
from infra.local.stack.backlog import read_backlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack


def state(_arguments: Sequence[str], progress: Progress) -> int:
    """Print the state of the checkout's stack; return 0 only if every server runs and the API is healthy."""
    found = read_state(selection.current_stack(progress))
    progress.print_line(json.dumps(found))
    return 0 if found["healthy"] else 1


def read_state(stack: DeployedStack) -> dict[str, Any]:
    """Return the state of each server and the API, and the backlog if PostgreSQL runs."""
    servers = [
        {
            "name": server.name,
            "title": TITLES[server.name],
            "alive": server.is_alive(),
            "pid": server.pid,
            "port": server.port,
        }
        for server in stack.servers
    ]
    alive = {server["name"]: server["alive"] for server in servers}
    api_is_healthy = stack.aws.is_alive() and stack.is_healthy()
    return {
        "healthy": all(alive.values()) and api_is_healthy,
        "api_url": stack.api_url if api_is_healthy else None,
        "servers": servers,
        "backlog": read_backlog(stack) if alive["postgres"] else None,
    }
