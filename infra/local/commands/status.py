"""`make status`: the state of each server and the API, the backlog and the open dead letters."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from infra.local.servers.group import TITLES
from infra.local.stack import selection
from infra.local.stack.backlog import print_backlog, read_backlog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.local.progress import Progress
    from infra.local.stack.deployed import DeployedStack


def status(arguments: Sequence[str], progress: Progress) -> int:
    """Print the state of the checkout's stack; return 0 only if every server runs and the API is healthy."""
    parser = argparse.ArgumentParser(prog="infra.local status")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    state = read_state(selection.current_stack(progress))
    if options.json:
        progress.print_line(json.dumps(state))
    else:
        _print_state(state, progress)
    return 0 if state["healthy"] else 1


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


def _print_state(state: Mapping[str, Any], progress: Progress) -> None:
    for server in state["servers"]:
        process = f"pid {server['pid']}" if server["pid"] else "container"
        location = f"{process}, port {server['port']}" if server["alive"] else "-"
        progress.print_line(f"{'up  ' if server['alive'] else 'down'}  {server['title']:18}{location}")
    progress.print_line(f"{'up  ' if state['api_url'] else 'down'}  {'the API':18}{state['api_url'] or '-'}")
    if state["backlog"]:
        print_backlog(state["backlog"], progress)
