"""A rotated password needs neither a deployment nor a restart: real servers, with Secrets Manager in this process."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
from moto import mock_aws
from psycopg import sql

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import RetryableError
from grantwire.jetstream.connection import NatsConnection
from grantwire.jetstream.settings import NatsSettings
from grantwire.settings import load
from tests.support.concurrency import at_once
from tests.support.paths import PYTHONPATH
from tests.support.plaintext import PLAINTEXT
from tests.support.secured_nats import SecuredNats, user
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.servers.postgres import PostgresServer

AWKWARD = "p@ss:w/rd?#%41"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with mock_aws():
        yield boto3.client("secretsmanager")


class Role:
    """A role of PostgreSQL whose password is in a secret."""

    def __init__(self, server: PostgresServer, manager: Any, secret: Any) -> None:
        self.name = f"rotating_{uuid.uuid4().hex[:8]}"
        self._server, self._manager, self._secret = server, manager, secret
        self._execute("CREATE ROLE {} LOGIN")
        self.change_password("first")
        self.arn: str = manager.create_secret(Name=self.name, SecretString=self.text("first"))["ARN"]

    def change_password(self, password: str) -> None:
        """In the database."""
        self._execute("ALTER ROLE {} PASSWORD {}", sql.Literal(password))

    def keep(self, password: str) -> None:
        """In the secret."""
        self._manager.put_secret_value(SecretId=self.arn, SecretString=self.text(password))

    def text(self, password: str) -> str:
        """What the secret holds: a URL, or JSON as of RDS."""
        if self._secret == "url":
            return self._server.url(user=self.name, password=password)
        where = urlsplit(self._server.url())
        return json.dumps(
            {"username": self.name, "password": password, "host": where.hostname, "port": where.port, "engine": "pg"}
        )

    def database(self) -> Database:
        """An execution environment's, whose cache it shares with all others of this process."""
        return Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_SECRET_ARN": self.arn}))

    def drop(self) -> None:
        """Remove it."""
        self._execute("DROP ROLE {}")

    def _execute(self, statement: str, *parts: sql.Composable) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self.name), *parts))


@pytest.fixture(params=["url", "json"])
def role(request: pytest.FixtureRequest, server: PostgresServer, manager: Any) -> Iterator[Role]:
    """A role with a secret."""
    role = Role(server, manager, request.param)
    yield role
    role.drop()


def test_a_rotated_password_of_postgresql_is_noticed(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    """The connection that there is goes on; the next one is made with the new password, whatever that is made of."""
    with closing(role.database()) as database:
        assert database.fetch_row("SELECT current_user", {}) == (role.name,)
        role.change_password(AWKWARD)
        role.keep(AWKWARD)
        assert database.fetch_row("SELECT 1", {}) == (1,)
        database.close()
        assert database.fetch_row("SELECT current_user", {}) == (role.name,)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["message"] for line in lines] == ["database credentials refreshed"]
    assert AWKWARD not in str(lines)


def test_all_connections_of_an_environment_survive_a_rotation(role: Role) -> None:
    """They are refused at the same moment; whoever is first to look makes it known to the others."""
    databases = [role.database() for _ in range(6)]
    assert at_once(6, lambda n: databases[n].fetch_row("SELECT 1", {})) == [(1,)] * 6
    role.change_password("second")
    role.keep("second")
    for database in databases:
        database.close()
    assert at_once(6, lambda n: databases[n].fetch_row("SELECT current_user", {})) == [(role.name,)] * 6
    for database in databases:
        database.close()


def test_a_password_that_is_wrong_stays_an_outage(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    """The database was changed and the secret not: nothing new to try, so nothing is tried, and nothing is shown."""
    role.change_password("hunter2")
    with closing(role.database()) as database:
        for _ in range(3):
            with pytest.raises(RetryableError, match=r"^temporarily unavailable, send the same request again$"):
                database.fetch_row("SELECT 1", {})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [("ERROR", "database unavailable")] * 3
    assert "password authentication failed" in lines[0]["reason"]
    assert "first" not in str(lines)


@pytest.mark.parametrize("form", ["url", "json"])
def test_a_rotated_password_of_nats_is_noticed(manager: Any, form: str) -> None:
    """The server comes back with another password; the worker that lost its connection goes on."""
    server = SecuredNats(STATE / f"rotating-nats-{form}", user("grantwire", "first"))
    server.start()

    def text(password: str) -> str:
        if form == "url":
            return f"nats://grantwire:{password}@{server.address}"
        return json.dumps({"url": server.url, "user": "grantwire", "password": password})

    arn = manager.create_secret(Name=f"nats-{form}", SecretString=text("first"))["ARN"]
    broker = NatsConnection(load(NatsSettings, {**PLAINTEXT, "NATS_SECRET_ARN": arn}))

    async def scenario() -> None:
        await broker.connect()
        server.stop()
        server.configuration = user("grantwire", "second")
        server.start()
        manager.put_secret_value(SecretId=arn, SecretString=text("second"))
        await broker.connect()
        await broker.client.flush()
        server.stop()
        server.configuration = user("grantwire", "third")
        server.start()
        with pytest.raises(RetryableError, match="Authorization Violation"):
            await broker.connect()
        await broker.close()

    try:
        asyncio.run(scenario())
    finally:
        server.destroy()


def test_a_call_ends_before_the_function_does() -> None:
    """The limits of botocore are longer than a function lives: a minute for each of five attempts."""
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
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": PYTHONPATH, "AWS_DEFAULT_REGION": "us-east-1", **environ},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert 4 <= float(answer.stdout.splitlines()[-1]) < 15
