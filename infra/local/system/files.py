"""Files that another process reads: never half written, and private where they hold secrets or process ids."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from infra.local.system.processes import Account


def write_private(path: Path, text: str, *, owner: Account | None = None) -> None:
    """Replace a file as a whole by one of mode 0600, which belongs to `owner` or to us."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if owner is not None:
            os.fchown(descriptor, owner.uid, owner.gid)
        file.write(text)
    fresh.replace(path)


@contextlib.contextmanager
def private_file(path: Path, text: str) -> Iterator[Path]:
    """Give a file of mode 0600 with this text, and delete it at the end."""
    write_private(path, text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Keep a record, as `write_private` does."""
    write_private(path, json.dumps(record, indent=2))


def read_record(path: Path) -> dict[str, Any]:
    """Give a record; an empty one if there is none, or nothing that can be read as one."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
