"""The list of commands, and the virtual environment that each one needs.

A command starts in the user's Python. It creates the virtual environments if it needs them, then restarts inside the
development environment. This module therefore imports the standard library only.
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
from infra.local.system import files, unprivileged
from infra.local.system.programs import replace_process
from infra.local.system.temporary import temporary_directory
from infra.local.toolchain import environments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    Function = Callable[[Sequence[str], Progress], int]

EXIT_INTERRUPTED = 130


class Needs(Enum):
    """The virtual environments that a command needs."""

    NOTHING = auto()
    INSTALLED = auto()  # installed at some time
    CURRENT = auto()  # installed from the current locks


class Command(NamedTuple):
    """A command: its help text, the module below `infra` with the function of its name, and its environments."""

    help: str
    module: str
    needs: Needs


COMMANDS = {
    "up": Command(
        "install, start and deploy the stack, and wait until it is healthy; STACK=localstack uses LocalStack in "
        "Docker; WEBHOOK=http://127.0.0.1:4242/hook sends notifications there, WEBHOOK=off to the log again",
        "local.commands.up",
        Needs.CURRENT,
    ),
    "down": Command("stop the stack and keep its data", "local.commands.down", Needs.NOTHING),
    "demo": Command(
        "send example requests: grant, replay, conflicts, revoke; show the path and timing of their events",
        "local.commands.demo",
        Needs.INSTALLED,
    ),
    "status": Command("run `grantwire status` for this checkout", "local.commands.grantwire", Needs.INSTALLED),
    "doctor": Command("run `grantwire doctor` for this checkout", "local.commands.grantwire", Needs.INSTALLED),
    "state": Command("print servers and backlog as JSON, for grantwire", "local.commands.state", Needs.INSTALLED),
    "findings": Command(
        "print what is wrong on this machine as JSON, for grantwire",
        "local.commands.findings",
        Needs.INSTALLED,
    ),
    "fault": Command(
        "break the stack on purpose, to practise; ARGS=--help lists the faults, ARGS='receiver --repair' undoes one",
        "local.commands.fault",
        Needs.INSTALLED,
    ),
    "logs": Command(
        "show the end of each log; ARGS=--follow keeps printing new lines", "local.commands.logs", Needs.INSTALLED
    ),
    "env": Command(
        'print the API address and token as shell variables: eval "$(make -s env)"', "local.commands.env", Needs.NOTHING
    ),
    "invoke": Command(
        "run one function in a container: make invoke FN=grant", "local.commands.invoke", Needs.INSTALLED
    ),
    "test": Command("run all tests; ARGS are passed to pytest", "local.commands.test", Needs.CURRENT),
    "test-containers": Command(
        "deploy to LocalStack as a process; with Docker, also test every function in a container, and the integration "
        "tests on images",
        "local.commands.test",
        Needs.CURRENT,
    ),
    "test-console": Command(
        "test the console in Chromium; UPDATE=1 writes docs/console again", "local.commands.test", Needs.CURRENT
    ),
    "bench": Command(
        "measure performance and compare it with limits and alternatives; QUICK=1 takes minutes, with rough figures",
        "local.commands.bench",
        Needs.CURRENT,
    ),
    "check": Command(
        "check style, types, imports, events, template, locks, console, benchmark and coverage",
        "local.commands.check",
        Needs.CURRENT,
    ),
    "schema": Command("write infra/sql/schema.sql from the other SQL files", "local.commands.generate", Needs.CURRENT),
    "wheel": Command(
        "build the wheels of the idempotency library and of the grantwire command",
        "local.commands.generate",
        Needs.CURRENT,
    ),
    "proto": Command("generate the Python code of the events from proto/", "local.commands.generate", Needs.CURRENT),
    "audit": Command(
        "search the locked packages for known vulnerabilities, and the checkout for secrets",
        "local.commands.supply_chain",
        Needs.CURRENT,
    ),
    "sbom": Command(
        "write the software bill of materials of the layer, in CycloneDX format",
        "local.commands.supply_chain",
        Needs.CURRENT,
    ),
    "lock": Command("update the locked requirements", "local.commands.generate", Needs.CURRENT),
    "clean": Command("stop the stack and delete all data below .grantwire", "local.commands.down", Needs.NOTHING),
}


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; an expected failure is printed without a traceback."""
    progress = Progress()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        name, arguments = _parse(argv)
        _protect_state(COMMANDS[name].needs)
        _provide_home()
        with _temporary_directory(COMMANDS[name].needs):
            _enter_environment(COMMANDS[name].needs, argv, progress)
            return _load_function(name)(arguments, progress)
    except CommandError as error:
        progress.print_error(error)
        return 1
    except BrokenPipeError:  # `make logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        progress.print_line("\nInterrupted. `make up` continues from here, `make down` stops the running servers.")
        return EXIT_INTERRUPTED


def _parse(argv: Sequence[str]) -> tuple[str, list[str]]:
    width = max(map(len, COMMANDS)) + 2
    lines = "\n".join(f"  {name:{width}}{command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="infra.local",
        description=f"Manage the local stack of this checkout: make COMMAND\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the command")
    parsed = parser.parse_args(argv)
    return parsed.command, parsed.arguments


def _protect_state(needs: Needs) -> None:
    """Keep other accounts out of the state folder, which contains passwords, tokens and data."""
    if needs is Needs.CURRENT or STATE.exists():
        with contextlib.suppress(PermissionError):  # the folder of another account, which has protected it
            files.make_private_folder(STATE, unprivileged.enterable_mode())


def _provide_home() -> None:
    """Let the programs that commands run keep their caches in the state folder if the account has no usable home."""
    home = os.environ.get("HOME", "")
    if not (home and os.access(home, os.W_OK)):
        os.environ["HOME"] = str(STATE / "home")


def _temporary_directory(needs: Needs) -> contextlib.AbstractContextManager[object]:
    """Return a temporary directory in the state folder; none if the state folder would be created only for it."""
    if needs is not Needs.CURRENT and not STATE.exists():
        return contextlib.nullcontext()
    return temporary_directory()


def _enter_environment(needs: Needs, argv: Sequence[str], progress: Progress) -> None:
    """Create or update the virtual environments if needed, and restart this program inside."""
    if needs is Needs.NOTHING:
        return
    if needs is Needs.INSTALLED and not environments.DEVELOPMENT.python.exists():
        raise CommandError("The tools are not installed.", hint="Install them with `make up`.")
    changed = needs is Needs.CURRENT and environments.ensure(progress)
    if environments.is_active() and not changed:
        return
    os.chdir(CHECKOUT)
    replace_process(
        [str(environments.DEVELOPMENT.python), "-m", "infra.local", *argv], environments.python_environment()
    )


def _load_function(name: str) -> Function:
    module = importlib.import_module(f"infra.{COMMANDS[name].module}")
    function: Function = getattr(module, name.replace("-", "_"))
    return function


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
