"""Connecting in the init phase (X5).

Lambda gives the init phase a full CPU, whatever the memory of the function. So reading the secret and the TLS handshake
with PostgreSQL cost the first caller nothing there, and several times as much in the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.database import Database


def connect_early(database: Database, environ: Mapping[str, str]) -> Database:
    """Connect now on Lambda, elsewhere on first use; return the database.

    Not in a snapshot, whose connection would be dead in each copy.
    """
    is_snapshot = environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start"
    if "AWS_LAMBDA_FUNCTION_NAME" in environ and not is_snapshot:
        database.connect_early()
    return database
