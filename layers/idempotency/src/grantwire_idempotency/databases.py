"""What a program with a database layer of its own needs to use it with the library (psycopg is required).

Stores and locks accept any `StatementRunner`, guards any `TransactionRunner`. `Transaction` is a transaction for such
a class on psycopg. The functions interpret psycopg's errors, and `watch_forks` keeps a connection out of the processes
that are forked. `set_limit` limits the waits of a connection. If a server responds to nothing, the wait raises
`NoResponseError`, and the connection is closed.
"""

from __future__ import annotations

from grantwire_idempotency._internal.foundation.forks import ForkAware, watch_forks
from grantwire_idempotency._internal.postgres.deadlines import NoResponseError, set_limit
from grantwire_idempotency._internal.postgres.errors import (
    describe,
    is_authentication_error,
    is_unavailable,
    sqlstate_class,
)
from grantwire_idempotency._internal.postgres.protocols import (
    AsyncStatementRunner,
    AsyncTransactionRunner,
    StatementRunner,
    TransactionRunner,
)
from grantwire_idempotency._internal.postgres.transactions import AsyncTransaction, Transaction

__all__ = [
    "AsyncStatementRunner",
    "AsyncTransaction",
    "AsyncTransactionRunner",
    "ForkAware",
    "NoResponseError",
    "StatementRunner",
    "Transaction",
    "TransactionRunner",
    "describe",
    "is_authentication_error",
    "is_unavailable",
    "set_limit",
    "sqlstate_class",
    "watch_forks",
]
