"""Files that other processes read: replaced atomically, and readable by their owner only."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from infra.local.system.processes import Account


PRIVATE_FOLDER = 0o700


def write_private(path: Path, text: str, *, owner: Account | None = None) -> None:
    """Replace a file atomically with one of mode 0600 that belongs to `owner`, or to this account."""
    new_file = path.with_name(f"{path.name}.new")
    new_file.unlink(missing_ok=True)
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if owner is not None:
            os.fchown(descriptor, owner.uid, owner.gid)
        file.write(text)
    new_file.replace(path)


def make_private_folder(folder: Path, mode: int = PRIVATE_FOLDER) -> None:
    """Create a folder that other accounts cannot read, and remove their access to an existing one."""
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != mode:
        folder.chmod(mode)


def open_log(path: Path) -> IO[bytes]:
    """Open a log of mode 0600 for appending; an older, readable one becomes private."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
    os.fchmod(log.fileno(), 0o600)
    return log


@contextlib.contextmanager
def private_file(path: Path, text: str) -> Iterator[Path]:
    """Provide a file of mode 0600 with this text inside the block, and delete it at the end."""
    write_private(path, text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON with `write_private`."""
    write_private(path, json.dumps(record, indent=2))


def read_record(path: Path) -> dict[str, Any]:
    """Return a record; an empty one if the file is missing or is not a JSON object."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
