"""Converts errors of sqlite3 into errors of the library: the only place that interprets them."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.shortages import is_local_shortage
from grantwire_idempotency.errors import ConfigError, InternalError, RetryableError

if TYPE_CHECKING:
    from pathlib import Path

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger

# The files of a connection: the database, its log, the index of the log, and their folder.
_FILES = 4
# Another connection is writing, or is opening or repairing the file.
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
# The disk is full or broken, or the machine has no memory.
_RETRYABLE_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
# The path is wrong, or the process may not write there.
_PATH_CODES = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOTADB,
)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection has the file, or this process has too many open files."""
    code = _primary_code(error)
    return code in _BUSY_CODES or (code == sqlite3.SQLITE_CANTOPEN and _has_no_free_file())


def describe(error: sqlite3.Error) -> str:
    """Return the name and the text of an error."""
    return f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"


def convert_error(error: sqlite3.Error, path: Path, logger: LibraryLogger) -> Exception:
    """Return RetryableError if the file is unavailable, ConfigError for a wrong path, else InternalError."""
    reason, code = describe(error), _primary_code(error)
    if code in _RETRYABLE_CODES:
        logger.warning("sqlite unavailable", extra={"reason": reason})
        return RetryableError("temporarily unavailable, send the same request again")
    if code in _PATH_CODES:
        return ConfigError(
            [f"{path} must be a SQLite database, or a new file, in a folder that is writable ({reason})"]
        )
    return InternalError(f"SQLite rejected a statement: {reason}")


def _primary_code(error: sqlite3.Error) -> int:
    """Return the code without its extension, or 0 for an error of the module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _has_no_free_file() -> bool:
    """Return whether not enough files can be opened: SQLite says only that it could not open its own.

    They must be other files. If this process closed one on the database, it would lose the locks of its connections.
    """
    opened: list[int] = []
    try:
        for _ in range(_FILES):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before an error are closed
    except OSError as error:
        return is_local_shortage(error)
    finally:
        for file in opened:
            os.close(file)
    return False
