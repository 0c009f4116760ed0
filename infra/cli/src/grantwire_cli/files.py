"""Files of this account: those with secrets, which no other account may read, and those that a command continues.

A file is never written through a link: another account can put one into a shared folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

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


def open_own(path: Path, *, create: bool = True) -> BinaryIO:
    """Open a file of this account to continue it; with `create`, make it with mode 0600 if there is none.

    Raises AccessError for a link, for what is no file, and for a file that another account owns or may write.
    Raises OSError if it cannot be opened.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_own(path, "is a link") from error
        raise
    try:
        _check_own(path, os.fstat(descriptor))
    except AccessError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b")


def _check_own(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_own(path, "is not a file")
    if status.st_nlink > 1:
        raise _not_own(path, "has a second name (a hard link)")
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _not_own(path, "can be changed by another account")


def _not_own(path: Path, problem: str) -> AccessError:
    return AccessError(f"{path} {problem}, so it is not used.", hint="Delete it.", code="UNSAFE_FILE")


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
