"""Files with secrets: written with mode 0600, and refused if another account can read them or owns them."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from grantwire_cli.errors import AccessError, CommandError

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_private(path: Path) -> str | None:
    """Return the content of a file with secrets; None if there is no such file.

    Raises AccessError if another account owns the file or may read or write it.
    """
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            return file.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"Could not read {path}: {error}.") from error


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {os.geteuid(), 0}:
        raise AccessError(f"{path} belongs to another account, so it is not used.", code="UNSAFE_FILE")
    if status.st_mode & OTHERS:
        problem = f"{path} contains tokens, and other accounts can access it (mode {stat.S_IMODE(status.st_mode):04o})."
        raise AccessError(problem, hint=f"Make it private: chmod 600 {path}", code="UNSAFE_FILE")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically with one of mode 0600, in a folder that only this account can enter.

    Raises CommandError if the file cannot be written.
    """
    new_file = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            new_file.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                new_file.unlink()
    except OSError as error:
        raise CommandError(f"Could not write {path}: {error.strerror}.") from error
