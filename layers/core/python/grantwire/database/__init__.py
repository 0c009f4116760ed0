"""PostgreSQL: one connection for each execution environment, and the only package that imports psycopg.

A connection is opened on first use. It is opened again after it was lost, because PostgreSQL restarted or because the
sandbox was frozen for too long. Every wait is bounded: connecting, locks, statements, and a server that has stopped
responding.

If the settings require TLS, the server must present a valid certificate for its host name. No part of the database URL
can weaken that.

Errors of psycopg are converted to Grantwire's in `errors`. Other packages import the parts of psycopg that they need
(`sql`, `class_row`, `Jsonb`) from here.
"""

from __future__ import annotations

from psycopg import Error, sql
from psycopg.errors import LockNotAvailable
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from grantwire.database.connection import Connection, connect
from grantwire.database.errors import to_grantwire_error, wrap_exceptions
from grantwire.database.listen import listen
from grantwire.database.sessions import Database
from grantwire.database.settings import DatabaseSettings
from grantwire_idempotency.databases import Transaction

__all__ = [
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
    "sql",
    "to_grantwire_error",
    "wrap_exceptions",
]
