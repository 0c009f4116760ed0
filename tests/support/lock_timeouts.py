"""A short lock timeout, which proves that a statement does not wait for a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg


def never_wait(owner: psycopg.Connection[dict[str, Any]]) -> None:
    """Make every new connection to this database fail if it waits for a lock for more than half a second."""
    (row,) = owner.execute("SELECT current_database() AS name").fetchall()
    owner.execute(sql.SQL("ALTER DATABASE {} SET lock_timeout = '500ms'").format(sql.Identifier(row["name"])))
