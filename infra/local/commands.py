"""Commands that run the stack and the tests."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from infra.local import stacks
from infra.local.backing import TITLES, stop_below
from infra.local.backlog import show_backlog
from infra.local.environments import CHECKOUT, STATE
from infra.local.processes import identify
from infra.local.scratch import memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.local.deployed import Service
    from infra.local.progress import Progress

READY = """
Grantwire is up.
  API         {api}
  PostgreSQL  {database}
  NATS        {nats}
  local AWS   {emulator}

Try it:
  eval "$(make -s env)"
  curl -si -X POST "$GRANTWIRE_API/v1/entitlements/grants" \\
    -H "Authorization: Bearer $GRANTWIRE_TOKEN" -H "Idempotency-Key: p_456" \\
    -H "Content-Type: application/json" \\
    -d '{{"user_id":"u_123","stock_keeping_unit":"item1","reason":"purchase","purchase_id":"p_456"}}'

`make demo` shows more, `make status` and `make logs` how it is, `make down` stops it.
"""


def up(arguments: Sequence[str], progress: Progress) -> int:
    """Bring the checkout's stack up and say how to use it."""
    parser = argparse.ArgumentParser(prog="infra.local up")
    parser.add_argument("stack", nargs="?", choices=stacks.KINDS, default=stacks.KINDS[0], help="which kind")
    stack = stacks.chosen(parser.parse_args(arguments).stack, progress)
    stack.up()
    progress.say(
        READY.format(
            api=stack.api_url,
            database=stack.database_url,
            nats=stack.nats_url,
            emulator=stack.emulator_url,
        )
    )
    return 0


def status(_arguments: Sequence[str], progress: Progress) -> int:
    """Show how the checkout's stack is; 0 only if all of it works."""
    stack = stacks.current(progress)
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


def test(arguments: Sequence[str], _progress: Progress) -> int:
    """Become pytest; the tests bring up servers of their own, in a folder that is named by their process.

    All of them run in as many processes as there are processors, up to four; whatever is asked for by name, in one.
    """
    for folder in (*(STATE / "test").glob("run-*"), *memory().glob("run-*")):
        if identify(int(folder.name.removeprefix("run-"))) is None:  # a run that was killed
            stop_below(folder)
            shutil.rmtree(folder, ignore_errors=True)
    os.chdir(CHECKOUT)
    sys.stdout.flush()
    variables = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(STATE / "cache" / "hypothesis")}
    processes = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadscope", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", *(arguments or processes)]
    os.execve(sys.executable, command, variables)  # noqa: S606  # no shell
