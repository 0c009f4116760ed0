"""`make status`: each server, the API, the backlog and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.servers.group import TITLES
from infra.local.stack import kinds
from infra.local.stack.backlog import show_backlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.progress import Progress
    from infra.local.stack.deployed import Service


def status(_arguments: Sequence[str], progress: Progress) -> int:
    """Show how the checkout's stack is; 0 only if all of it works."""
    stack = kinds.current(progress)
    alive = {server.name: server.alive() for server in stack.servers}
    for server in stack.servers:
        where = _where(server) if alive[server.name] else "-"
        progress.say(f"{'up  ' if alive[server.name] else 'down'}  {TITLES[server.name]:18}{where}")
    running = all(alive.values())
    healthy = running and stack.healthy()
    progress.say(f"{'up  ' if healthy else 'down'}  {'the API':18}{stack.api_url if healthy else '-'}")
    if alive["postgres"]:
        show_backlog(stack, progress)
    return 0 if healthy else 1


def _where(server: Service) -> str:
    return f"pid {server.pid}, port {server.port}" if server.pid else f"container, port {server.port}"
