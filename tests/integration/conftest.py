from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from redis import Redis

from grantwire.observability import logger
from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import PostgresServer
from tests.support.client import Client
from tests.support.migrating import migrate
from tests.support.paths import MIGRATIONS
from tests.support.servers import STATE, Databases, clusters, nats
from tests.support.valkey import ValkeyServer
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Cluster

Rows = psycopg.Connection[dict[str, Any]]


@pytest.fixture(scope="session", params=list(clusters().values()), ids=list(clusters()))
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Databases of a server that is started once; every test runs on every PostgreSQL that is here."""
    cluster: Cluster = request.param()
    cluster.start()
    try:
        databases = Databases(cluster)
        yield databases
        databases.close()
    finally:
        cluster.destroy()


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A migrated database that nobody else has, for the functions' role."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def owner_url(databases: Databases, database_url: str) -> str:
    """The same database for its owner, who may do what the functions may not."""
    return databases.of_owner(database_url)


@pytest.fixture
def rows(owner_url: str) -> Iterator[Rows]:
    """A connection of the test's own, as the owner: to look at what was written and to stand in the way."""
    with psycopg.connect(owner_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """Calls the functions in this process, with one connection as in one execution environment."""
    with Client(database_url) as client:
        yield client


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A server of the tests' own, whatever the others run on: to stop, to kill, to freeze."""
    server = PostgresServer(STATE / "private", settings={"fsync": "off"})
    server.start()
    migrate(server.url(), MIGRATIONS)
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A NATS with JetStream that is started once; each test has streams of its own on it."""
    server = nats()
    server.start()
    yield server.url
    server.destroy()


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    """A NATS of this test's own: to stop, to kill, to start again."""
    server = NatsServer(STATE / "private-nats")
    server.start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A Valkey that is started once; for tests that do not stop it."""
    server = ValkeyServer(STATE / "valkey")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[Redis]:
    """A client of an empty Valkey."""
    with Redis.from_url(valkey_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def private_valkey() -> Iterator[ValkeyServer]:
    """A Valkey of this test's own: to stop, to kill, to start again."""
    server = ValkeyServer(STATE / "private-valkey")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def environ(database_url: str, nats_url: str) -> dict[str, str]:
    """The environment of a worker, with streams that nobody else has; change it before you load settings from it."""
    return worker_environ(database_url, nats_url)


@pytest.fixture
def stream(environ: dict[str, str]) -> Iterator[Stream]:
    """The test's end of the stream."""
    with Stream(environ) as stream:
        yield stream


@pytest.fixture
def _command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command changes its process, which here is the tests'."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logger.log_level
    yield
    logger.setLevel(level)
