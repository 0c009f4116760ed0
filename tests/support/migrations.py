"""Migrates the databases of tests. Test servers have no TLS, which the functions' connections require."""

from __future__ import annotations

import psycopg
from psycopg.rows import tuple_row

from grantwire.database.migrations import Schema, apply, read_schema


def migrate(url: str, schema: Schema | None = None) -> list[str]:
    """Apply the SQL files that the database lacks, by default the checkout's; return the names of the applied ones."""
    with psycopg.connect(
        url, autocommit=True, row_factory=tuple_row, application_name="grantwire-migrate"
    ) as connection:
        return apply(connection, schema or read_schema())
