"""Shows without a clock that a statement does not wait for a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg


def never_wait(owner: psycopg.Connection[dict[str, Any]]) -> None:
    """Let every later connection to this database fail instead of waiting for a lock; for half a second it may."""
    (row,) = owner.execute("SELECT current_database() AS name").fetchall()
    owner.execute(sql.SQL("ALTER DATABASE {} SET lock_timeout = '500ms'").format(sql.Identifier(row["name"])))
