"""Migrates a test's database: its servers speak without TLS, which no function's connection would accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import tuple_row

from grantwire.database.migrations import apply, read_schema
from tests.support.paths import MIGRATIONS, SQL

if TYPE_CHECKING:
    from pathlib import Path


def migrate(url: str, migrations: Path = MIGRATIONS, sql: Path = SQL) -> list[str]:
    """Bring the database up to the files; the names of those applied now."""
    with psycopg.connect(
        url, autocommit=True, row_factory=tuple_row, application_name="grantwire-migrate"
    ) as connection:
        return apply(connection, read_schema(migrations, sql))
