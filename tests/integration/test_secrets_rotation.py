"""A rotated password needs neither a deployment nor a restart. The servers are real, Secrets Manager is mocked."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import load
from infra.local.system.memory import in_memory
from tests.support.concurrency import run_concurrently
from tests.support.paths import PYTHONPATH
from tests.support.plaintext import PLAINTEXT
from tests.support.secured_nats import SecuredNats, user
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer
    from tests.support.secrets_manager import FakeSecretsManager

SPECIAL_PASSWORD = "p@ss:w/rd?#%41"


class Role:
    """A PostgreSQL role whose password is stored in a secret."""

    def __init__(self, server: PostgresServer, secrets_manager: FakeSecretsManager, secret_format: str) -> None:
        self.name = f"rotating_{uuid.uuid4().hex[:8]}"
        self._server, self._manager, self._secret_format = server, secrets_manager, secret_format
        self._execute("CREATE ROLE {} LOGIN")
        # The local stack takes CONNECT from PUBLIC on every database of its server, which may be this one.
        self._execute("GRANT CONNECT ON DATABASE postgres TO {}")
        self.change_password("first")
        self.arn = secrets_manager.store(self.name, self._secret_text("first"))

    def change_password(self, password: str) -> None:
        """Change the password in the database."""
        self._execute("ALTER ROLE {} PASSWORD {}", sql.Literal(password))

    def store_password(self, password: str) -> None:
        """Change the password in the secret."""
        self._manager.secrets[self.arn] = self._secret_text(password)

    def _secret_text(self, password: str) -> str:
        """Return the text of the secret: a URL, or JSON in the format of RDS."""
        if self._secret_format == "url":
            return self._server.url(user=self.name, password=password)
        url = urlsplit(self._server.url())
        return json.dumps(
            {"username": self.name, "password": password, "host": url.hostname, "port": url.port, "engine": "pg"}
        )

    def database(self) -> Database:
        """Return a new connection; all connections of the process share the cache of secrets."""
        return Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_SECRET_ARN": self.arn}))

    def drop(self) -> None:
        """Drop the role."""
        self._execute("DROP OWNED BY {}")
        self._execute("DROP ROLE {}")

    def _execute(self, statement: str, *parts: sql.Composable) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self.name), *parts))


@pytest.fixture(params=["url", "json"])
def role(request: pytest.FixtureRequest, server: PostgresServer, secrets_manager: FakeSecretsManager) -> Iterator[Role]:
    """A role with its secret, in each format."""
    role = Role(server, secrets_manager, request.param)
    yield role
    role.drop()


def test_new_connection_uses_the_rotated_postgresql_password(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    """The open connection stays usable; the next one uses the new password, which has special characters."""
    with closing(role.database()) as database:
        assert database.fetch_row("SELECT current_user", {}) == (role.name,)
        role.change_password(SPECIAL_PASSWORD)
        role.store_password(SPECIAL_PASSWORD)
        assert database.fetch_row("SELECT 1", {}) == (1,)
        database.close()
        assert database.fetch_row("SELECT current_user", {}) == (role.name,)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["message"] for line in lines] == ["database credentials refreshed"]
    assert SPECIAL_PASSWORD not in str(lines)


def test_concurrent_connections_use_the_rotated_password(role: Role) -> None:
    """All are rejected at the same moment; the first one refreshes the cached secret for the others."""
    databases = [role.database() for _ in range(6)]
    assert run_concurrently(6, lambda n: databases[n].fetch_row("SELECT 1", {})) == [(1,)] * 6
    role.change_password("second")
    role.store_password("second")
    for database in databases:
        database.close()
    assert run_concurrently(6, lambda n: databases[n].fetch_row("SELECT current_user", {})) == [(role.name,)] * 6
    for database in databases:
        database.close()


def test_wrong_password_in_the_secret_is_an_outage(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    """If the secret has not changed, the connection is not retried, and no password is logged."""
    role.change_password("hunter2")
    with closing(role.database()) as database:
        for _ in range(3):
            with pytest.raises(RetryableError, match=r"^temporarily unavailable, send the same request again$"):
                database.fetch_row("SELECT 1", {})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [("ERROR", "database unavailable")] * 3
    assert "password authentication failed" in lines[0]["reason"]
    assert "first" not in str(lines)


@pytest.mark.parametrize("secret_format", ["url", "json"])
def test_new_connection_uses_the_rotated_nats_password(secrets_manager: FakeSecretsManager, secret_format: str) -> None:
    """The server restarts with another password, and the worker reconnects."""
    server = SecuredNats(in_memory(STATE) / f"rotating-nats-{secret_format}", user("grantwire", "first"))
    server.start()

    def secret_text(password: str) -> str:
        if secret_format == "url":
            return f"nats://grantwire:{password}@{server.address}"
        return json.dumps({"url": server.url, "user": "grantwire", "password": password})

    arn = secrets_manager.store(f"nats-{secret_format}", secret_text("first"))
    connection = NatsConnection(load(NatsSettings, {**PLAINTEXT, "NATS_SECRET_ARN": arn}))

    async def scenario() -> None:
        await connection.connect()
        server.stop()
        server.configuration = user("grantwire", "second")
        server.start()
        secrets_manager.secrets[arn] = secret_text("second")
        await connection.connect()
        await connection.client.flush()
        server.stop()
        server.configuration = user("grantwire", "third")
        server.start()
        with pytest.raises(RetryableError, match="Authorization Violation"):
            await connection.connect()
        await connection.close()

    try:
        asyncio.run(scenario())
    finally:
        server.destroy()


def test_reading_a_secret_times_out_before_the_function() -> None:
    """Botocore's defaults, a minute for each of five attempts, exceed the timeout of a function."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    program = (
        "import time; from grantwire.errors import RetryableError; from grantwire.secrets import secret_cache\n"
        "started = time.monotonic()\n"
        "try: secret_cache.get('arn')\n"
        "except RetryableError: print(time.monotonic() - started)"
    )
    environ = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with listener:
        completed = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": PYTHONPATH, "AWS_DEFAULT_REGION": "us-east-1", **environ},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
    assert 4 <= float(completed.stdout.splitlines()[-1]) < 60
