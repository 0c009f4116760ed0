"""The locked requirements: `make lock` updates them, `make check` verifies them."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE
from infra.local.system import programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import uv_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# In this order: the development environment takes the layer's versions, and the library's tests take its versions.
SOURCES = (
    "layers/core/python/requirements.in",
    "requirements/uv.in",
    "requirements/development.in",
    "requirements/library.in",
    "requirements/emulator.in",
    "requirements/audit.in",
)
# The locks are valid for every platform. The package index is the user's own configuration.
OPTIONS = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url")


def write_lock(source: str, options: Sequence[str]) -> None:
    """Write the lock of one source."""
    _compile(CHECKOUT / source, (CHECKOUT / source).with_suffix(".txt"), *options)


def find_stale_locks() -> list[str]:
    """Return the locks that are not current with their sources. Newer versions in the index do not matter."""
    stale = []
    for source in map(CHECKOUT.joinpath, SOURCES):
        locked = source.with_suffix(".txt")
        compiled = STATE / "locks" / f"{source.parent.name}-{locked.name}"
        compiled.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(locked, compiled)
        _compile(source, compiled)
        if compiled.read_bytes() != locked.read_bytes():
            stale.append(str(locked.relative_to(CHECKOUT)))
    return stale


def _compile(source: Path, target: Path, *options: str) -> None:
    names = ("--custom-compile-command", "make lock", "--output-file", target)
    launch = Launch(
        command=[uv_path(), "pip", "compile", "--quiet", *OPTIONS, *options, *names, source.relative_to(CHECKOUT)],
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
