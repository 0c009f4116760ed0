"""A shortage of connections: how it is recognised in this process, and how long a call waits for its end (C23)."""

from __future__ import annotations

import errno
import os
from datetime import timedelta

from grantwire_idempotency._internal.foundation.backoff import Backoff

# The message of a BusyError.
BUSY = "no connection is free, send the same request again"

# How long a call waits for a free connection, beside the wait of a pool, and its delays.
BUSY_WAIT = timedelta(seconds=5)
BUSY_BACKOFF = Backoff(timedelta(milliseconds=20), timedelta(milliseconds=500), timedelta(0), 0.5, 1.5)

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
