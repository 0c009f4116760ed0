"""The product's database on a PostgreSQL server: creation with its two roles, and migration.

As on AWS, the owner migrates, and the functions log in as a role that has only the privileges that they need. `make up`
and stack.json show the owner's address.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from infra.local.layer import PLAINTEXT
from infra.local.paths import CHECKOUT
from infra.local.system import programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import python_environment

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_NAME = "grantwire"  # also the name of the role that owns it
SERVICE_ROLE = "grantwire_service"
FUNCTIONS_ROLE = "grantwire_functions"
HINT = "Was a migration edited after it was applied? `make clean` starts over with an empty database."


class Cluster(Protocol):
    """A PostgreSQL server with a known superuser password."""

    @property
    def password(self) -> str:
        """The superuser's password."""

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the address of a database for a client."""


def owner_url(server: Cluster) -> str:
    """Return the address of the database for its owner."""
    return server.url(DATABASE_NAME, user=DATABASE_NAME)


def functions_url(owner_url: str, server: Cluster) -> str:
    """Return the same address for the role that the functions log in as."""
    parts = urlsplit(owner_url)
    address = parts.netloc.rpartition("@")[2]
    credentials = f"{SERVICE_ROLE}:{quote(_functions_password(server), safe='')}"
    return urlunsplit(parts._replace(netloc=f"{credentials}@{address}"))


def create(server: Cluster) -> None:
    """Create the database, its owner and the functions' role. As on RDS, neither role is a superuser."""
    name = sql.Identifier(DATABASE_NAME)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        owner = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}")
        _create_role(connection, DATABASE_NAME, owner.format(name, sql.Literal(server.password)))
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE_NAME]).rowcount:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        _create_functions_role(connection, _functions_password(server))


def _create_functions_role(connection: psycopg.Connection, password: str) -> None:
    """Create the role that the functions log in as.

    Only this role and the owner can connect to the database, and this role cannot create temporary tables.
    """
    names = {
        "database": sql.Identifier(DATABASE_NAME),
        "service": sql.Identifier(SERVICE_ROLE),
        "functions": sql.Identifier(FUNCTIONS_ROLE),
    }
    _create_role(connection, FUNCTIONS_ROLE, sql.SQL("CREATE ROLE {functions} NOLOGIN").format(**names))
    _create_role(connection, SERVICE_ROLE, sql.SQL("CREATE ROLE {service} LOGIN").format(**names))
    for statement in (
        sql.SQL("ALTER ROLE {service} PASSWORD {password}"),
        sql.SQL("GRANT {functions} TO {service}"),
        sql.SQL("REVOKE ALL ON DATABASE {database} FROM PUBLIC"),
        sql.SQL("GRANT CONNECT ON DATABASE {database} TO {service}"),
    ):
        connection.execute(statement.format(**names, password=sql.Literal(password)))


def _create_role(connection: psycopg.Connection, name: str, statement: sql.Composed) -> None:
    if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount:
        connection.execute(statement)


def _functions_password(server: Cluster) -> str:
    """Derive the functions' password from the superuser's, so that there is no second secret to store.

    The derivation is one-way: the functions' password does not reveal the superuser's.
    """
    return hmac.new(server.password.encode(), SERVICE_ROLE.encode(), hashlib.sha256).hexdigest()


def migrate(server: Cluster, state: Path) -> None:
    """Apply the missing migrations as the owner.

    Raises CommandError with the log in `state` if a migration fails.
    """
    state.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        command=[sys.executable, "-m", "infra.cli.migrate"],
        environment={**python_environment(), **PLAINTEXT, "DATABASE_URL": owner_url(server)},
        log=state / "migrations.log",
        directory=CHECKOUT,
    )
    programs.run(launch, record=state / "tool.json", problem="Migrating the database failed.", hint=HINT)
