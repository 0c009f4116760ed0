"""The virtual environments of a checkout, made from the locked requirements.

This module needs the standard library only: it runs before anything is installed. Where packages come from is
the person's own pip and uv configuration.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.paths import CACHE, CHECKOUT, STATE
from infra.local.system import files, programs
from infra.local.system.locks import exclusive, if_free
from infra.local.system.processes import Launch

if TYPE_CHECKING:
    from infra.local.progress import Progress

REQUIREMENTS = CHECKOUT / "requirements"
LOCK = STATE / "environments.lock"
RECORD = STATE / "installer.json"
HINT = "Are the package index and the disk in order? The command can simply be repeated."


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the lock file that says what is in it."""

    title: str
    folder: Path
    lock: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether it was made to its end, from this lock, by this Python."""
        return self.python.exists() and self._stamp_of() == self.wanted()

    def wanted(self) -> dict[str, str]:
        """Say what the environment must be made from."""
        return {"python": _interpreter(), "lock": hashlib.sha256(self.lock.read_bytes()).hexdigest()}

    def begin(self) -> bool:
        """Mark it as being changed; tell whether it can be changed as it is, or must be made anew."""
        usable = self.python.exists() and self._stamp_of().get("python") == _interpreter()
        self._stamp.unlink(missing_ok=True)
        return usable

    def finish(self) -> None:
        """Mark it as made; the last thing to be done, so that half an environment is never taken for one."""
        files.write_record(self._stamp, self.wanted())

    @property
    def _stamp(self) -> Path:
        return self.folder / "grantwire.json"

    def _stamp_of(self) -> dict[str, str]:
        return files.read_record(self._stamp)


DEVELOPMENT = Environment("development", STATE / "venv", REQUIREMENTS / "development.txt")
EMULATOR = Environment("emulator", STATE / "emulator", REQUIREMENTS / "emulator.txt")


def ensure(progress: Progress) -> bool:
    """Make or renew both environments; tell whether that was needed. Costs next to nothing when it is not."""
    if DEVELOPMENT.ready and EMULATOR.ready:
        return False
    with exclusive(LOCK, progress):
        if not DEVELOPMENT.ready:
            with progress.step("Installing the tools (the first time takes about half a minute)"):
                _make_development()
        if not EMULATOR.ready:
            with progress.step("Installing the AWS emulator"):
                _make_emulator()
    return True


def end_leftover() -> None:
    """End an installer that was left behind; one whose lock is held is somebody's."""
    with if_free(LOCK) as free:
        if free:
            programs.end_recorded(RECORD)


def active() -> bool:
    """Tell whether we run in the development environment."""
    return Path(sys.prefix).resolve() == DEVELOPMENT.folder.resolve()


def python_environment() -> dict[str, str]:
    """Give our own environment, with byte code kept under the state folder: never beside the sources."""
    return {**os.environ, "PYTHONPYCACHEPREFIX": str(CACHE / "python")}


def uv() -> Path:
    """Name the installer, which the development environment brings."""
    return DEVELOPMENT.folder / "bin" / "uv"


def _make_development() -> None:
    """Let plain pip install the installer, and that the rest."""
    target = DEVELOPMENT
    if not target.begin():
        shutil.rmtree(target.folder, ignore_errors=True)
        _run(os.path.realpath(sys.executable), "-m", "venv", target.folder)
    pip = (target.python, "-m", "pip", "--disable-pip-version-check", "install")
    _run(*pip, "--require-hashes", "-r", REQUIREMENTS / "uv.txt")
    _sync(target)


def _make_emulator() -> None:
    target = EMULATOR
    if not target.begin():
        shutil.rmtree(target.folder, ignore_errors=True)
        _run(uv(), "venv", "--python", DEVELOPMENT.python, target.folder)
    _sync(target)


def _sync(target: Environment) -> None:
    _run(uv(), "pip", "sync", "--python", target.python, "--require-hashes", target.lock)
    target.finish()


def _run(*command: str | Path) -> None:
    log = STATE / "environments.log"
    launch = Launch(command=command, environment=os.environ, log=log, directory=CHECKOUT)
    programs.run(launch, record=RECORD, problem="Installing failed.", hint=HINT)


def _interpreter() -> str:
    return f"{platform.python_version()} {os.path.realpath(sys.executable)}"
