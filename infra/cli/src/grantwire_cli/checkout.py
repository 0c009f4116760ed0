"""A checkout of Grantwire and its local stack.

The commands of the local stack are `python -m infra.local COMMAND` in the checkout, which the make targets call too.
A checkout of another account is refused, because its code would run as this one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grantwire_cli.errors import AccessError, CommandError
from grantwire_cli.files import read_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MARKER = Path("infra") / "local" / "__main__.py"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)  # those of infra/local/toolchain/interpreter.py


@dataclass(frozen=True)
class Checkout:
    """The folder of a checkout."""

    folder: Path

    @property
    def description_path(self) -> Path:
        """The file with the addresses and the token of the running stack."""
        return self.folder / ".grantwire" / "stack.json"

    def description(self) -> dict[str, Any] | None:
        """Return the description of the running stack; None if the stack is not up."""
        text = read_private(self.description_path)
        try:
            content = json.loads(text) if text is not None else None
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def run(self, *arguments: str, stdout: Any = None) -> int:
        """Run a command of the local stack with this terminal, and return its exit code.

        Ctrl-C reaches the command itself, which ends in its own way.
        """
        process = subprocess.Popen(self._command(arguments), cwd=self.folder, env=_environment(), stdout=stdout)
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)

    def lines(self, *arguments: str) -> Iterator[str]:
        """Run a command of the local stack and yield its output; stop it if the caller stops reading."""
        with subprocess.Popen(
            self._command(arguments), cwd=self.folder, env=_environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield from (line.rstrip("\n") for line in process.stdout or ())
            finally:
                process.terminate()

    def query(self, *arguments: str, timeout: float | None = None) -> dict[str, Any]:
        """Run a command that prints a JSON object, and return it, whatever its exit code.

        Raises CommandError with the end of its errors if it prints none, or if it has not ended in time.
        """
        command, environ = self._command(arguments), _environment()
        try:
            result = subprocess.run(
                command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            problem = f"The checkout {self.folder} does not say its {arguments[0]} within {timeout:g} s."
            raise CommandError(problem) from error
        try:
            content = json.loads(result.stdout)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            last = (result.stderr.strip() or result.stdout.strip() or "it printed nothing").splitlines()[-1]
            raise CommandError(f"The checkout {self.folder} does not say its {arguments[0]}: {last[-500:]}")
        return content

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [self._interpreter(), "-m", "infra.local", *arguments]

    def _interpreter(self) -> str:
        own = self.folder / ".grantwire" / "venv" / "bin" / "python"
        if own.exists():
            return str(own)
        if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
            return sys.executable
        for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1):
            if found := shutil.which(f"python3.{minor}"):
                return found
        hint = "Debian, Ubuntu: apt install python3 python3-venv - macOS: brew install python@3.13"
        raise CommandError("The local stack needs Python 3.11 to 3.14.", hint=hint, code="NO_PYTHON")


def find_checkout(start: Path) -> Checkout | None:
    """Return the checkout that contains a folder, or None.

    Raises AccessError if it belongs to another account.
    """
    for folder in (start, *start.parents):
        if (folder / MARKER).is_file() and (folder / "template.yaml").is_file():
            if (folder / MARKER).stat().st_uid not in {os.geteuid(), 0}:
                problem = f"The checkout {folder} belongs to another account, and its code would run as you."
                raise AccessError(problem, hint="Use a checkout of your own.", code="UNSAFE_CHECKOUT")
            return Checkout(folder)
    return None


def require_checkout(path: Path | None) -> Checkout:
    """Return the checkout at a path, or that of the current folder.

    Raises CommandError if there is none.
    """
    found = find_checkout((path or Path.cwd()).resolve())
    if found is None:
        where = f"{path} is not" if path else "The current folder is not in"
        hint = "Change to a checkout, or name it with --checkout or GRANTWIRE_CHECKOUT."
        raise CommandError(f"{where} a checkout of Grantwire.", hint=hint, code="NO_CHECKOUT")
    return found


def _environment() -> dict[str, str]:
    """Return the environment for the checkout's interpreter, without settings of this one."""
    return {
        name: value for name, value in os.environ.items() if name not in {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
    }
