"""PostgreSQL: one connection for each execution environment, and the one place that knows psycopg's errors.

The connection is made when it is first needed and made again when it turns out to be lost: PostgreSQL restarted, or the
sandbox was frozen long enough for the network to forget it. Every wait has an end: connecting, a lock, a statement, and
a server that no longer answers at all.

Where the settings ask for TLS, the server must prove its name with a certificate, or there is no connection: nothing in
an address can weaken that.

No other package imports psycopg: what a statement needs of it (`sql` to compose, `class_row`, `Jsonb`) is here.
"""

from __future__ import annotations

from psycopg import Error, sql
from psycopg.errors import LockNotAvailable
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from grantwire.database.connection import BoundedConnection, Connection, connect
from grantwire.database.errors import refusing_data, translated, wrap_exceptions
from grantwire.database.listen import listen
from grantwire.database.sessions import Database, Transaction
from grantwire.database.settings import DatabaseSettings

__all__ = [
    "BoundedConnection",
    "Connection",
    "Database",
    "DatabaseSettings",
    "Error",
    "Jsonb",
    "LockNotAvailable",
    "Transaction",
    "class_row",
    "connect",
    "listen",
    "refusing_data",
    "sql",
    "translated",
    "wrap_exceptions",
]
