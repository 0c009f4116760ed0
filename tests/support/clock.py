"""A clock of the database that a test sets: it replaces clock_timestamp(), statement_timestamp() and now()."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg

# Defaults of columns keep the real clock, because they were resolved when the tables were made.
_REPLACE = """
CREATE TABLE clock (ahead interval NOT NULL);
INSERT INTO clock VALUES ('0');
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE SECURITY DEFINER
    RETURN pg_catalog.clock_timestamp() + (SELECT ahead FROM public.clock);
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE SECURITY DEFINER
    RETURN pg_catalog.statement_timestamp() + (SELECT ahead FROM public.clock);
CREATE FUNCTION now() RETURNS timestamptz LANGUAGE sql STABLE SECURITY DEFINER
    RETURN pg_catalog.now() + (SELECT ahead FROM public.clock);
"""


class Clock:
    """Replaces the clock for all connections to this database that are opened later."""

    def __init__(self, owner: psycopg.Connection[Any]) -> None:
        self._owner = owner
        owner.execute(_REPLACE)
        database = sql.Identifier(owner.info.dbname)
        owner.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog").format(database))

    def pass_time(self, hours: float) -> None:
        """Set the clock forward, or back if `hours` is negative; statements that wait see it, too."""
        self._owner.execute("UPDATE public.clock SET ahead = ahead + %s", (timedelta(hours=hours),))
