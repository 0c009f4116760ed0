"""The commands, and how each gets the environment that it needs.

It begins in the Python that it was started with, makes the environments when a command needs them, and goes on
inside the development environment. So this module imports nothing that has to be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE
from infra.local.progress import Progress
from infra.local.system.programs import become
from infra.local.system.temporary import temporary_directory
from infra.local.toolchain import environments

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
    """What a command is for, the module below `infra` with the function of its name, and what it needs."""

    help: str
    module: str
    needs: Needs


COMMANDS = {
    "up": Command(
        "set everything up, start the stack and wait until it is healthy; STACK=localstack: on LocalStack, with Docker",
        "local.commands.up",
        Needs.CURRENT,
    ),
    "down": Command("stop the stack; data stay", "local.commands.down", Needs.NOTHING),
    "demo": Command(
        "show a grant, its replay, conflicts, a revoke and the way of each, with times",
        "local.commands.demo",
        Needs.INSTALLED,
    ),
    "status": Command(
        "show each server, the API, the backlog and the dead letters",
        "local.commands.status",
        Needs.INSTALLED,
    ),
    "logs": Command("show the end of each log; --follow to go on", "local.commands.logs", Needs.INSTALLED),
    "env": Command("print variables for a shell: eval $(make -s env)", "local.commands.env", Needs.NOTHING),
    "invoke": Command(
        "run one function in a container: make invoke FN=grant", "local.commands.invoke", Needs.INSTALLED
    ),
    "test": Command("run all tests; what follows goes to pytest", "local.commands.test", Needs.CURRENT),
    "test-containers": Command(
        "run every function in a container; needs an engine", "local.commands.test", Needs.CURRENT
    ),
    "bench": Command(
        "measure against the physical limit and peers; QUICK=1: in minutes, to look at",
        "local.commands.bench",
        Needs.CURRENT,
    ),
    "check": Command("check style, types, architecture, template and locks", "local.commands.check", Needs.CURRENT),
    "schema": Command("write infra/schema.sql from the migrations", "local.commands.generate", Needs.CURRENT),
    "proto": Command("generate the events' code from proto/", "local.commands.generate", Needs.CURRENT),
    "redrive": Command("list, redrive or discard dead letters; see --help", "cli.redrive", Needs.INSTALLED),
    "rebuild": Command(
        "rebuild the read model from the record or the stream; see --help", "cli.rebuild", Needs.INSTALLED
    ),
    "clients": Command("create, list, rotate or revoke callers of the API; see --help", "cli.clients", Needs.INSTALLED),
    "lock": Command("renew the locked requirements", "local.commands.generate", Needs.CURRENT),
    "clean": Command("stop the stack and delete everything under .grantwire", "local.commands.down", Needs.NOTHING),
}


def main(words: Sequence[str]) -> int:
    """Run one command; an expected failure is explained without a traceback."""
    progress = Progress()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        name, arguments = _parse(words)
        with _temporary_directory(COMMANDS[name].needs):
            _enter_environment(COMMANDS[name].needs, words, progress)
            return _function(name)(arguments, progress)
    except CommandError as error:
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


def _temporary_directory(needs: Needs) -> contextlib.AbstractContextManager[object]:
    """Keep temporary files in the state folder, but make none only for them."""
    if needs is not Needs.CURRENT and not STATE.exists():
        return contextlib.nullcontext()
    return temporary_directory()


def _enter_environment(needs: Needs, words: Sequence[str], progress: Progress) -> None:
    """Make the environments if need be, and start again inside."""
    if needs is Needs.NOTHING:
        return
    if needs is Needs.INSTALLED and not environments.DEVELOPMENT.python.exists():
        raise CommandError("The stack has not been set up.", hint="`make up` does that.")
    changed = needs is Needs.CURRENT and environments.ensure(progress)
    if environments.active() and not changed:
        return
    os.chdir(CHECKOUT)
    become([str(environments.DEVELOPMENT.python), "-m", "infra.local", *words], environments.python_environment())


def _function(name: str) -> Function:
    module = importlib.import_module(f"infra.{COMMANDS[name].module}")
    function: Function = getattr(module, name.replace("-", "_"))
    return function


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
