"""Recognises a shortage of this process, in which no server was asked (C23)."""

from __future__ import annotations

import errno
import os

# The message of a BusyError.
BUSY = "no connection is free, send the same request again"

# This process, or this machine, has too many open files or connections.
_CODES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL)


def is_local_shortage(error: BaseException) -> bool:
    """Return whether an error of a client says that this machine has no file or port for another connection.

    libpq gives only the text of the operating system.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _CODES:
            return True
        cause = cause.__cause__ or cause.__context__
    return any(os.strerror(code) in str(error) for code in _CODES)
