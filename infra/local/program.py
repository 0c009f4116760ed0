"""The commands, and how each gets the environment that it needs.

It begins in the Python that it was started with, makes the environments when a command needs them, and goes on
inside the development environment. So this module imports nothing that has to be installed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from infra.local import environments
from infra.local.errors import LocalStackError
from infra.local.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    Function = Callable[[Sequence[str], Progress], int]

INTERRUPTED = 130


class Needs(Enum):
    """What a command needs before it can run."""

    NOTHING = auto()
    INSTALLED = auto()  # the environments as they are
    CURRENT = auto()  # the environments as the locks say


class Command(NamedTuple):
    """What a command is for, the module and function that do it, and what it needs."""

    help: str
    function: str
    needs: Needs


COMMANDS = {
    "up": Command(
        "set everything up, start the stack and wait until it is healthy; STACK=localstack: on LocalStack, with Docker",
        "commands.up",
        Needs.CURRENT,
    ),
    "down": Command("stop the stack; data stay", "basics.down", Needs.NOTHING),
    "demo": Command(
        "show a grant, its replay, conflicts, a revoke and the way of each, with times", "demo.demo", Needs.INSTALLED
    ),
    "status": Command(
        "show each server, the API, the backlog and the dead letters", "commands.status", Needs.INSTALLED
    ),
    "logs": Command("show the end of each log; --follow to go on", "logs.logs", Needs.INSTALLED),
    "env": Command("print variables for a shell: eval $(make -s env)", "basics.env", Needs.NOTHING),
    "invoke": Command("run one function in a container: make invoke FN=grant", "invoke.invoke", Needs.INSTALLED),
    "test": Command("run all tests; what follows goes to pytest", "commands.test", Needs.CURRENT),
    "test-containers": Command(
        "run every function in a container; needs an engine", "invoke.test_containers", Needs.CURRENT
    ),
    "bench": Command(
        "measure against the physical limit and peers; QUICK=1: in minutes, to look at", "bench.bench", Needs.CURRENT
    ),
    "check": Command("check style, types, architecture, template and locks", "checks.check", Needs.CURRENT),
    "schema": Command("write infra/schema.sql from the migrations", "schema.schema", Needs.CURRENT),
    "proto": Command("generate the events' code from proto/", "protobuf.proto", Needs.CURRENT),
    "redrive": Command("list, redrive or discard dead letters; see --help", "redrive.redrive", Needs.INSTALLED),
    "rebuild": Command(
        "rebuild the read model from the record or the stream; see --help", "rebuild.rebuild", Needs.INSTALLED
    ),
    "clients": Command(
        "create, list, rotate or revoke callers of the API; see --help", "clients.clients", Needs.INSTALLED
    ),
    "lock": Command("renew the locked requirements", "requirements.lock", Needs.CURRENT),
    "clean": Command("stop the stack and delete everything under .grantwire", "basics.clean", Needs.NOTHING),
}


def main(words: Sequence[str]) -> int:
    """Run one command; an expected failure is explained without a traceback."""
    progress = Progress()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        name, arguments = _parse(words)
        _enter_environment(COMMANDS[name].needs, words, progress)
        return _function(COMMANDS[name])(arguments, progress)
    except LocalStackError as error:
        progress.explain(error)
        return 1
    except BrokenPipeError:  # `make logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        progress.say("\nInterrupted. `make up` goes on from here, `make down` stops what has been started.")
        return INTERRUPTED


def _parse(words: Sequence[str]) -> tuple[str, list[str]]:
    width = max(map(len, COMMANDS)) + 2
    lines = "\n".join(f"  {name:{width}}{command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="infra.local",
        description=f"The local stack of this checkout.\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the command takes")
    parsed = parser.parse_args(words)
    return parsed.command, parsed.arguments


def _enter_environment(needs: Needs, words: Sequence[str], progress: Progress) -> None:
    """Make the environments if need be, and start again inside."""
    if needs is Needs.NOTHING:
        return
    if needs is Needs.INSTALLED and not environments.DEVELOPMENT.python.exists():
        raise LocalStackError("The stack has not been set up.", hint="`make up` does that.")
    changed = needs is Needs.CURRENT and environments.ensure(progress)
    if environments.active() and not changed:
        return
    python = str(environments.DEVELOPMENT.python)
    os.chdir(environments.CHECKOUT)
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(environments.STATE / "cache" / "python")}
    sys.stdout.flush()
    os.execve(python, [python, "-m", "infra.local", *words], variables)  # noqa: S606  # ourselves, no shell


def _function(command: Command) -> Function:
    module, _, name = command.function.rpartition(".")
    function: Function = getattr(importlib.import_module(f"infra.local.{module}"), name)
    return function


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
