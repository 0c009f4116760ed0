"""The virtual environments of a checkout, installed from the locked requirements.

This module imports the standard library only, because it runs before anything is installed. The package index is the
user's own pip and uv configuration.
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
from infra.local.system.locks import hold_lock, try_lock
from infra.local.system.processes import Launch

if TYPE_CHECKING:
    from infra.local.progress import Progress

REQUIREMENTS = CHECKOUT / "requirements"
LOCK = STATE / "environments.lock"
RECORD = STATE / "installer.json"
HINT = "Check the package index and the free disk space, then repeat the command."


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the lock file that it is installed from.

    `project` is the folder of a distribution of this checkout. It is installed in addition, as a link to its sources.
    `interpreter` is the Python that the environment is created with, by default the one that runs this.
    """

    title: str
    folder: Path
    lock: Path
    project: Path | None = None
    interpreter: Path | None = None

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        """Whether the environment is complete, and was installed from this lock for its Python."""
        return self.python.exists() and self._read_stamp() == self.expected_stamp()

    def expected_stamp(self) -> dict[str, str]:
        """Return the stamp of a current environment: its Python, and the hashes of its lock and its project."""
        stamp = {"python": self._interpreter, "lock": _hash(self.lock)}
        return stamp | ({"project": _hash(self.project / "pyproject.toml")} if self.project else {})

    def begin(self) -> bool:
        """Mark the environment as incomplete; return whether it can be updated, or must be created again."""
        is_updatable = self.python.exists() and self._read_stamp().get("python") == self._interpreter
        self._stamp.unlink(missing_ok=True)
        return is_updatable

    def finish(self) -> None:
        """Mark the environment as complete. This comes last, so that an incomplete one is never used."""
        files.write_record(self._stamp, self.expected_stamp())

    @property
    def _interpreter(self) -> str:
        if self.interpreter:
            return os.path.realpath(self.interpreter)
        return f"{platform.python_version()} {os.path.realpath(sys.executable)}"

    @property
    def _stamp(self) -> Path:
        return self.folder / "grantwire.json"

    def _read_stamp(self) -> dict[str, str]:
        return files.read_record(self._stamp)


DEVELOPMENT = Environment(
    "development", STATE / "venv", REQUIREMENTS / "development.txt", project=CHECKOUT / "infra" / "cli"
)
EMULATOR = Environment("emulator", STATE / "emulator", REQUIREMENTS / "emulator.txt")
# Only for some commands and tests, which install them when they first need them.
AUDIT = Environment("the audit tools", STATE / "audit", REQUIREMENTS / "audit.txt")
LOCALSTACK = Environment("LocalStack", STATE / "localstack-tools", REQUIREMENTS / "localstack.txt")
TRANSLATOR = Environment("LocalStack's copy of SAM", STATE / "translator", REQUIREMENTS / "translator.txt")


def ensure(progress: Progress) -> bool:
    """Create or update both environments; return whether that was needed. Fast if it was not.

    Raises CommandError with the log if an installation fails.
    """
    if DEVELOPMENT.is_ready and EMULATOR.is_ready:
        return False
    with hold_lock(LOCK, progress):
        if not DEVELOPMENT.is_ready:
            with progress.step("Installing the tools (the first time takes about half a minute)"):
                _install_development()
        if not EMULATOR.is_ready:
            with progress.step("Installing the AWS emulator"):
                _install_with_uv(EMULATOR)
    return True


def ensure_further(environment: Environment, progress: Progress) -> None:
    """Create or update an environment that `ensure` does not install.

    Raises CommandError with the log if the installation fails.
    """
    with hold_lock(LOCK, progress):
        if not environment.is_ready:
            with progress.step(f"Installing {environment.title}"):
                _install_with_uv(environment)


def stop_abandoned_installer() -> None:
    """Stop an installer that a killed command left running. If the lock is held, the installer is in use."""
    with try_lock(LOCK) as locked:
        if locked:
            programs.stop_recorded(RECORD)


def is_active() -> bool:
    """Return whether this process runs in the development environment."""
    return Path(sys.prefix).resolve() == DEVELOPMENT.folder.resolve()


def python_environment() -> dict[str, str]:
    """Return this process's environment, with byte code kept in the state folder and not next to the sources.

    So PYTHONDONTWRITEBYTECODE, which many images set, has no purpose here; every program would compile its imports.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPYCACHEPREFIX": str(CACHE / "python")}


def command_path() -> Path:
    """Return the path of the grantwire command in the development environment."""
    return DEVELOPMENT.folder / "bin" / "grantwire"


def uv_path() -> Path:
    """Return the path of the installer, uv, in the development environment."""
    return DEVELOPMENT.folder / "bin" / "uv"


def _install_development() -> None:
    """Install uv with pip, and everything else with uv."""
    target = DEVELOPMENT
    if not target.begin():
        shutil.rmtree(target.folder, ignore_errors=True)
        _run(os.path.realpath(sys.executable), "-m", "venv", target.folder)
    pip = (target.python, "-m", "pip", "--disable-pip-version-check", "install")
    _run(*pip, "--require-hashes", "-r", REQUIREMENTS / "uv.txt")
    _sync(target)


def _install_with_uv(target: Environment) -> None:
    if not target.begin():
        shutil.rmtree(target.folder, ignore_errors=True)
        _run(uv_path(), "venv", "--python", target.interpreter or DEVELOPMENT.python, target.folder)
    _sync(target)


def _sync(target: Environment) -> None:
    _run(uv_path(), "pip", "sync", "--python", target.python, "--require-hashes", target.lock)
    if target.project:
        # Its dependencies and its build tool are in the lock.
        options = ("--no-deps", "--no-build-isolation", "--editable", target.project)
        _run(uv_path(), "pip", "install", "--python", target.python, *options)
    target.finish()


def _run(*command: str | Path) -> None:
    log = STATE / "environments.log"
    launch = Launch(command=command, environment=os.environ, log=log, directory=CHECKOUT)
    programs.run(launch, record=RECORD, problem="Installing the packages failed.", hint=HINT)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
