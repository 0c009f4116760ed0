"""`make status`: the state of each server and the API, the backlog and the open dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.servers.group import TITLES
from infra.local.stack import selection
from infra.local.stack.backlog import print_backlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress
    from infra.local.stack.deployed import Service


def status(_arguments: Sequence[str], progress: Progress) -> int:
    """Print the state of the checkout's stack; return 0 only if every server runs and the API is healthy."""
    stack = selection.current_stack(progress)
    alive = {server.name: server.is_alive() for server in stack.servers}
    for server in stack.servers:
        location = _location(server) if alive[server.name] else "-"
        progress.print_line(f"{'up  ' if alive[server.name] else 'down'}  {TITLES[server.name]:18}{location}")
    healthy = all(alive.values()) and stack.is_healthy()
    progress.print_line(f"{'up  ' if healthy else 'down'}  {'the API':18}{stack.api_url if healthy else '-'}")
    if alive["postgres"]:
        print_backlog(stack, progress)
    return 0 if healthy else 1


def _location(server: Service) -> str:
    return f"pid {server.pid}, port {server.port}" if server.pid else f"container, port {server.port}"
