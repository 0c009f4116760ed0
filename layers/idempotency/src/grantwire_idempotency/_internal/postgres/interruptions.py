"""Makes a connection usable again after a signal or a time limit interrupted a statement (C24).

psycopg does that for KeyboardInterrupt, SystemExit and cancelled tasks. After any other exception inside a statement,
the connection still waits for its response, and every later statement would fail.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from grantwire_idempotency._internal.postgres.sources import Connection

_TIME_LIMIT = 5.0


def recover(connection: Connection) -> None:
    """End the statement that was interrupted and read its response, or close the connection if that fails."""
    if connection.info.transaction_status != TransactionStatus.ACTIVE:
        return
    try:
        connection.cancel_safe(timeout=_TIME_LIMIT)
        _read_responses(connection.pgconn)
    except psycopg.Error:
        pass
    if connection.info.transaction_status == TransactionStatus.ACTIVE:
        connection.close()


def _read_responses(pgconn: Any) -> None:
    deadline = time.monotonic() + _TIME_LIMIT
    while True:
        while pgconn.is_busy():
            readable, _, _ = select.select([pgconn.socket], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return
            pgconn.consume_input()
        if pgconn.get_result() is None:
            return
