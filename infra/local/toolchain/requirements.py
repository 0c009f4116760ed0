"""The locked requirements: renewed by `make lock`, compared by `make check`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, STATE
from infra.local.system import programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import uv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# In this order: the development environment takes the layer's versions.
SOURCES = (
    "layers/core/python/requirements.in",
    "requirements/uv.in",
    "requirements/development.in",
    "requirements/emulator.in",
)
# For every platform; no address of an index, which is the person's own business.
OPTIONS = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url")


def renew(source: str, options: Sequence[str]) -> None:
    """Write the lock of one source anew."""
    _compile(CHECKOUT / source, (CHECKOUT / source).with_suffix(".txt"), *options)


def compare() -> list[str]:
    """Name the locks that do not follow from their sources; newer versions elsewhere are no reason."""
    stale = []
    for source in map(CHECKOUT.joinpath, SOURCES):
        locked = source.with_suffix(".txt")
        again = STATE / "locks" / f"{source.parent.name}-{locked.name}"
        again.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(locked, again)
        _compile(source, again)
        if again.read_bytes() != locked.read_bytes():
            stale.append(str(locked.relative_to(CHECKOUT)))
    return stale


def _compile(source: Path, target: Path, *options: str) -> None:
    names = ("--custom-compile-command", "make lock", "--output-file", target)
    launch = Launch(
        command=[uv(), "pip", "compile", "--quiet", *OPTIONS, *options, *names, source.relative_to(CHECKOUT)],
        environment=os.environ,
        log=STATE / "locks.log",
        directory=CHECKOUT,
    )
    programs.run(launch, problem=f"{source} cannot be locked.")


if __name__ == "__main__":
    try:
        if found := compare():
            sys.exit(f"not up to date: {', '.join(found)}; run `make lock ARGS=--no-upgrade`")
    except CommandError as error:
        sys.exit(f"{error}\nsee {error.log}")
