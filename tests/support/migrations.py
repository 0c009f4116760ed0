"""Migrates the databases of tests. Test servers have no TLS, which the functions' connections require."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import tuple_row

from grantwire.database.migrations import apply, read_schema
from tests.support.paths import MIGRATIONS, SQL

if TYPE_CHECKING:
    from pathlib import Path


def migrate(url: str, migrations: Path = MIGRATIONS, sql: Path = SQL) -> list[str]:
    """Apply the migrations and SQL functions that the database lacks, and return the names of the applied ones."""
    with psycopg.connect(
        url, autocommit=True, row_factory=tuple_row, application_name="grantwire-migrate"
    ) as connection:
        return apply(connection, read_schema(migrations, sql))
