"""The product's database on a PostgreSQL server: creation with its roles, and migration.

As on AWS, the owner migrates, and the functions log in as roles that have only the privileges that they need: one for
manage_clients, one for all others. Superuser, owner and both roles have different passwords. `make up` and stack.json
show the owner's address.
"""

from __future__ import annotations

import re
import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from infra.local.layer import PLAINTEXT
from infra.local.paths import CHECKOUT
from infra.local.system import files, programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import python_environment

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_NAME = "grantwire"  # also the name of the role that owns it
ADMINISTRATOR = CHECKOUT / "infra" / "sql" / "administrator.sql"
SERVICE_ROLE = "grantwire_service"
CLIENTS_SERVICE_ROLE = "grantwire_clients_service"
LOGIN_ROLES = (SERVICE_ROLE, CLIENTS_SERVICE_ROLE)
HINT = "The last lines of the log, above, say what to do. Nothing that was stored is lost."


class Cluster(Protocol):
    """A PostgreSQL server whose superuser can log in."""

    @property
    def state(self) -> Path:
        """The folder for the passwords of the database's roles."""

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """Return the address of a database for a client; without a password, with that of the superuser."""


def role_password(server: Cluster, role: str) -> str:
    """Return the password of a role, in a file of mode 0600; choose it at the first use."""
    file = server.state / f"password.{role}"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_private(file, secrets.token_urlsafe(24))
    return file.read_text()


def owner_url(server: Cluster) -> str:
    """Return the address of the database for its owner."""
    return server.url(DATABASE_NAME, DATABASE_NAME, role_password(server, DATABASE_NAME))


def functions_url(owner_url: str, server: Cluster) -> str:
    """Return the same address for the role that the functions log in as."""
    return _url_for_role(owner_url, server, SERVICE_ROLE)


def clients_url(owner_url: str, server: Cluster) -> str:
    """Return the same address for the role that manage_clients logs in as."""
    return _url_for_role(owner_url, server, CLIENTS_SERVICE_ROLE)


def _url_for_role(owner_url: str, server: Cluster, role: str) -> str:
    parts = urlsplit(owner_url)
    credentials = f"{role}:{quote(role_password(server, role), safe='')}"
    return urlunsplit(parts._replace(netloc=f"{credentials}@{parts.netloc.rpartition('@')[2]}"))


def create(server: Cluster) -> None:
    """Create the database, its owner and the roles of the functions, with the statements of a deployment.

    The roles of the functions can connect to this database only, and cannot create temporary tables in it. The owner
    sees their sessions, so that doctor finds transactions that are open for long.
    """
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for statement in administrator_statements():
            with suppress(psycopg.errors.DuplicateDatabase):
                connection.execute(statement.encode())
        for role in (DATABASE_NAME, *LOGIN_ROLES):
            password = sql.Literal(role_password(server, role))
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), password))
        for (name,) in connection.execute("SELECT datname FROM pg_database WHERE datallowconn").fetchall():
            connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))


def administrator_statements() -> list[str]:
    """Return the statements of infra/sql/administrator.sql. Each needs a transaction of its own, as psql gives it."""
    text = re.sub(r"--.*", "", ADMINISTRATOR.read_text())
    return [statement.strip() for statement in re.findall(r"(?:[^;$]|\$\$.*?\$\$)+;", text, re.DOTALL)]


def migrate(server: Cluster, state: Path) -> None:
    """Apply the missing migrations as the owner.

    Raises CommandError with the log in `state`, which is of this run only, if a migration fails.
    """
    state.mkdir(parents=True, exist_ok=True)
    log = state / "migrations.log"
    log.unlink(missing_ok=True)
    launch = Launch(
        command=[sys.executable, "-m", "infra.operators.migrate"],
        environment={**python_environment(), **PLAINTEXT, "DATABASE_URL": owner_url(server)},
        log=log,
        directory=CHECKOUT,
    )
    programs.run(launch, record=state / "tool.json", problem="Migrating the database failed.", hint=HINT)
