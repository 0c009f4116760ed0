"""The statements of the deployment guide for the administrator of PostgreSQL, as RDS and Aurora have one."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from infra.local.servers.installations import list_installations
from infra.local.servers.postgres import UNSAFE, PostgresServer
from infra.local.stack.database import ADMINISTRATOR, administrator_statements
from infra.local.system.memory import in_memory
from tests.support.backends import installations_by_name
from tests.support.client import Client
from tests.support.migrations import migrate
from tests.support.run import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

MASTER = "master"
# Not every installation has it; that of the embedded PostgreSQL does, and it also talks to older servers.
PSQL = next(path for one in reversed(list_installations()) if (path := one.binaries / "psql").exists())
LOGINS = ("grantwire", "grantwire_service", "grantwire_clients_service")


@pytest.fixture(params=installations_by_name().items(), ids=lambda item: item[0])
def fresh_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A cluster of each tested version without our roles; its databases belong to the administrator, as on RDS."""
    name, installation = request.param
    server = PostgresServer(in_memory(STATE) / f"administrator-{name}", binaries=installation.binaries, settings=UNSAFE)
    server.start()
    try:
        with psycopg.connect(server.url(), autocommit=True) as superuser:
            superuser.execute(
                f"CREATE ROLE {MASTER} LOGIN PASSWORD '{MASTER}' NOSUPERUSER CREATEDB CREATEROLE".encode()
            )
            for database in ("postgres", "template1"):
                superuser.execute(f"ALTER DATABASE {database} OWNER TO {MASTER}".encode())
        yield server
    finally:
        server.destroy()


def _run(server: PostgresServer) -> list[str]:
    """Run the file with psql as the administrator, set the passwords, and return the lines of errors and warnings."""
    command = [str(PSQL), server.url("postgres", MASTER, MASTER), "--quiet", "--no-psqlrc"]
    passwords = [f"--command=ALTER ROLE {login} PASSWORD '{login}'" for login in LOGINS]
    done = subprocess.run([*command, f"--file={ADMINISTRATOR}"], capture_output=True, text=True, check=True)
    subprocess.run([*command, *passwords], capture_output=True, check=True)
    return re.findall(r"(?:ERROR|WARNING): .*", done.stderr)


def test_administrator_of_rds_creates_what_the_guide_needs(fresh_server: PostgresServer) -> None:
    """J2: no superuser; owner, functions and manage_clients then work, and reach no other database."""
    with psycopg.connect(fresh_server.url(), autocommit=True) as superuser:
        superuser.execute(f"GRANT pg_monitor TO {MASTER} WITH ADMIN OPTION".encode())  # as rds_superuser has it
    assert _run(fresh_server) == []
    assert _run(fresh_server) == ['ERROR:  database "grantwire" already exists']  # it can be run again
    owner, functions, clients = (fresh_server.url("grantwire", login, login) for login in LOGINS)
    assert migrate(owner)
    with Client(functions) as client:
        assert client.grant("k").status == 200
    with psycopg.connect(clients) as connection:
        connection.execute("SELECT 1 FROM api_clients")
    with psycopg.connect(owner) as connection:
        sees_all = connection.execute(
            "SELECT pg_has_role('pg_read_all_stats', 'USAGE'), rolsuper, rolcreaterole FROM"
            " pg_roles WHERE rolname = current_user"
        ).fetchall()
    assert sees_all == [(True, False, False)]
    for login in LOGINS:
        for database in ("postgres", "template1"):
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                psycopg.connect(fresh_server.url(database, login, login))


def test_administrator_with_less_is_told_what_is_missing(fresh_server: PostgresServer) -> None:
    """J2: a database of somebody else stays open, and a right that it cannot grant is named; the rest is done."""
    with psycopg.connect(fresh_server.url(), autocommit=True) as superuser:
        superuser.execute("ALTER DATABASE template1 OWNER TO postgres")
    warnings = _run(fresh_server)
    assert "WARNING:  every role may still connect to the database template1, which master does not own" in warnings
    assert ("may grant neither" in str(warnings)) == (fresh_server.major >= 16)  # before, CREATEROLE is enough
    assert not [line for line in warnings if line.startswith("ERROR")]


def test_local_stack_runs_every_statement_of_the_file() -> None:
    """`make up` has no psql, and sends the statements one by one."""
    statements = administrator_statements()
    assert [statement.split(maxsplit=2)[0] for statement in statements].count("DO") == 3
    assert len(statements) == 8
