"""Opens connections that receive notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from psycopg import sql

from grantwire.database.connection import connect

if TYPE_CHECKING:
    from grantwire.database.connection import Connection
    from grantwire.database.settings import DatabaseSettings


def listen(settings: DatabaseSettings, channel: LiteralString) -> Connection:
    """Open a direct connection, not through a proxy, and LISTEN on a channel; raise psycopg's own errors."""
    connection = connect(settings, application_name=f"grantwire-listen-{channel}", listening=True)
    try:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    except BaseException:
        connection.close()
        raise
    return connection
