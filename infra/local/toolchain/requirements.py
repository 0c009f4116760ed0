"""The locked requirements: `make lock` updates them, `make check` verifies them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE
from infra.local.system import programs
from infra.local.system.processes import Launch
from infra.local.toolchain import interpreter
from infra.local.toolchain.environments import uv_path

if TYPE_CHECKING:
    from collections.abc import Sequence


# In this order: the development environment takes the versions of the layers, the library's tests take its versions.
SOURCES = (
    "layers/core/python/requirements.in",
    "layers/credentials/requirements.in",
    "requirements/uv.in",
    "requirements/development.in",
    "requirements/library.in",
    "requirements/emulator.in",
    "requirements/audit.in",
)
UNIVERSAL = ("--universal", "--python-version", "3.11")  # valid for every platform, and for Python 3.11 and newer
# Packages of tests that stay at the state of an old release: no update and no audit would change them.
FROZEN_SOURCES = {
    "requirements/localstack.in": ("--exclude-newer", "2026-03-05", "--python-version", "3.13"),  # that of its image
    "requirements/translator.in": UNIVERSAL,
}
SOURCE_ONLY = "localstack-client"  # a package without wheels, and without code to compile
# The package index is the user's own configuration.
OPTIONS = ("--generate-hashes", "--no-emit-index-url")


def write_lock(source: str, options: Sequence[str]) -> None:
    """Write the lock of one source."""
    _compile(source, (CHECKOUT / source).with_suffix(".txt"), *options)


def find_stale_locks() -> list[str]:
    """Return the locks that are not current with their sources. Newer versions in the index do not matter."""
    stale = []
    for source in (*SOURCES, *FROZEN_SOURCES):
        locked = (CHECKOUT / source).with_suffix(".txt")
        compiled = STATE / "locks" / f"{locked.parent.name}-{locked.name}"
        compiled.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(locked, compiled)
        _compile(source, compiled)
        if compiled.read_bytes() != locked.read_bytes():
            stale.append(str(locked.relative_to(CHECKOUT)))
    return stale


def find_missing_wheels() -> list[str]:
    """Return the locks and the supported Pythons for which a package has no wheel for this platform.

    Such a Python would need a compiler, or could not install the lock at all. Nothing is installed.
    """
    versions = [f"3.{minor}" for minor in range(interpreter.OLDEST[1], interpreter.NEWEST[1] + 1)]
    missing = []
    for lock in [str(Path(source).with_suffix(".txt")) for source in SOURCES]:
        for version in versions:
            options = ("--dry-run", "--quiet", "--no-deps", "--require-hashes", "--target", STATE / "locks" / "empty")
            wheels = ("--only-binary", ":all:", "--no-binary", SOURCE_ONLY)
            command: list[str | Path] = [
                uv_path(),
                "pip",
                "install",
                *options,
                *wheels,
                "--python-version",
                version,
                "-r",
                lock,
            ]
            if subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False).returncode:
                missing.append(f"{lock} on Python {version}")
    return missing


def _compile(source: str, target: Path, *options: str) -> None:
    names = ("--custom-compile-command", "make lock", "--output-file", target)
    options = (*OPTIONS, *FROZEN_SOURCES.get(source, UNIVERSAL), *options)
    launch = Launch(
        command=[uv_path(), "pip", "compile", "--quiet", *options, *names, source],
        environment=os.environ,
        log=STATE / "locks.log",
        directory=CHECKOUT,
    )
    programs.run(launch, problem=f"Locking {source} failed.")


if __name__ == "__main__":
    try:
        if stale := find_stale_locks():
            sys.exit(f"not current: {', '.join(stale)}; run `make lock ARGS=--no-upgrade`")
    except CommandError as error:
        sys.exit(f"{error}\nsee {error.log}")
    if missing := find_missing_wheels():
        sys.exit(f"a package has no wheel: {', '.join(missing)}")
