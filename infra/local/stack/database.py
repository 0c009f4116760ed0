"""The product's database on a PostgreSQL server: made with its two roles, and migrated.

As on AWS, the owner migrates, and the functions log in as somebody who may do no more than their work needs. People are
told the address of the owner.
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

NAME = "grantwire"
LOGIN = "grantwire_service"
RIGHTS = "grantwire_functions"
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


def for_functions(url: str, server: Cluster) -> str:
    """Give the same address for the functions' role, whose password tells nothing of the superuser's."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{LOGIN}:{quote(_functions_password(server), safe='')}@{place}"))


def create(server: Cluster) -> None:
    """Make the database, its owner and the functions' role: neither is a superuser, as on RDS."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        owner = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}")
        _make_role(connection, NAME, owner.format(sql.Identifier(NAME), sql.Literal(server.password)))
        name = sql.Identifier(NAME)
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [NAME]).rowcount:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        _let_functions_in(connection, _functions_password(server))


def _let_functions_in(connection: psycopg.Connection, password: str) -> None:
    """Make the role that the functions log in as. Nobody else may connect, and it may make no temporary tables."""
    names = {"database": sql.Identifier(NAME), "login": sql.Identifier(LOGIN), "rights": sql.Identifier(RIGHTS)}
    _make_role(connection, RIGHTS, sql.SQL("CREATE ROLE {rights} NOLOGIN").format(**names))
    _make_role(connection, LOGIN, sql.SQL("CREATE ROLE {login} LOGIN").format(**names))
    for statement in (
        sql.SQL("ALTER ROLE {login} PASSWORD {password}"),
        sql.SQL("GRANT {rights} TO {login}"),
        sql.SQL("REVOKE ALL ON DATABASE {database} FROM PUBLIC"),
        sql.SQL("GRANT CONNECT ON DATABASE {database} TO {login}"),
    ):
        connection.execute(statement.format(**names, password=sql.Literal(password)))


def _make_role(connection: psycopg.Connection, name: str, statement: sql.Composed) -> None:
    if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount:
        connection.execute(statement)


def _functions_password(server: Cluster) -> str:
    """Derived, so that there is no second secret to keep: one way only."""
    return hmac.new(server.password.encode(), LOGIN.encode(), hashlib.sha256).hexdigest()


def migrate(server: Cluster, state: Path) -> None:
    """Apply the migrations that are missing, as the owner."""
    state.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        command=[sys.executable, "-m", "infra.cli.migrate"],
        environment={**python_environment(), **PLAINTEXT, "DATABASE_URL": url(server)},
        log=state / "migrations.log",
        directory=CHECKOUT,
    )
    programs.run(launch, record=state / "tool.json", problem="Migrating the database failed.", hint=HINT)
