"""The product's database on a PostgreSQL server: made and migrated."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

import psycopg
from psycopg import sql

from infra.local import tools
from infra.local.environments import CHECKOUT
from infra.local.processes import Launch

if TYPE_CHECKING:
    from pathlib import Path

NAME = "grantwire"
HINT = "Was a migration edited after it had been applied? `make clean` starts over with an empty database."


class Cluster(Protocol):
    """A PostgreSQL server whose superuser we know."""

    @property
    def password(self) -> str:
        """The superuser's password."""

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Give the address of a database for a client."""


def url(server: Cluster) -> str:
    """Give the address of the database for the role that owns it."""
    return server.url(NAME, user=NAME)


def create(server: Cluster) -> None:
    """Make the database and its owner: as on RDS, a role that may make roles but is no superuser."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        name = sql.Identifier(NAME)
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [NAME]).rowcount:
            role = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}")
            connection.execute(role.format(name, sql.Literal(server.password)))
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [NAME]).rowcount:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))


def migrate(server: Cluster, state: Path) -> None:
    """Apply the migrations that are missing."""
    state.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        command=[sys.executable, "-m", "infra.local.migrate"],
        environment={**os.environ, "DATABASE_URL": url(server)},
        log=state / "migrations.log",
        directory=CHECKOUT,
    )
    tools.run(launch, record=state / "tool.json", problem="Migrating the database failed.", hint=HINT)
