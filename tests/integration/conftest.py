from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from redis import Redis

from grantwire.observability import logger
from infra.local.servers.postgres import PostgresServer
from tests.support.client import Client
from tests.support.migrations import migrate
from tests.support.nats_users import NatsWithUsers, configured
from tests.support.servers import STATE, Databases, clusters, nats
from tests.support.valkey import ValkeyServer
from tests.support.workers.bridge_stream import Stream
from tests.support.workers.relay_support import worker_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Cluster

Rows = psycopg.Connection[dict[str, Any]]


# The fixtures that take their servers from the back end of the run.
BACKEND_FIXTURES = {"databases", "nats_url"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With another back end, select the tests that use its servers.

    The others test no server, or start their own: with TLS, with users, or to stop and kill it. `make test` runs them.
    """
    if os.environ.get("GRANTWIRE_TEST_BACKEND", "embedded") == "embedded":
        return
    folder = Path(__file__).parent
    others = [
        item
        for item in items
        if item.path.is_relative_to(folder) and BACKEND_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


@pytest.fixture(scope="session", params=list(clusters().values()), ids=list(clusters()))
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Databases on a PostgreSQL that is started once; every test runs on every available PostgreSQL."""
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
    """Address of a migrated database that only this test uses, for the role of the functions."""
    url = databases.migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def owner_url(databases: Databases, database_url: str) -> str:
    """Address of the same database for its owner, who has privileges that the functions lack."""
    return databases.url_for_owner(database_url)


@pytest.fixture
def clients_url(databases: Databases, database_url: str) -> str:
    """Address of the same database for the role of manage_clients."""
    return databases.url_for_clients(database_url)


@pytest.fixture
def rows(owner_url: str) -> Iterator[Rows]:
    """Connection of the owner, to check rows that were written and to hold locks."""
    with psycopg.connect(owner_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """Caller of the functions in this process, with one connection as in one execution environment."""
    with Client(database_url) as client:
        yield client


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """Embedded PostgreSQL for tests that stop, kill or freeze their server."""
    server = PostgresServer(STATE / "private", settings={"fsync": "off"})
    server.start()
    migrate(server.url())
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """Address, for the workers, of a NATS with JetStream that is started once; each test has its own streams."""
    server = nats()
    server.start()
    yield server.url
    server.destroy()


@pytest.fixture
def nats_server() -> Iterator[NatsWithUsers]:
    """NATS that only this test uses, to stop, kill or restart it."""
    server = NatsWithUsers(STATE / "private-nats")
    server.start()
    yield server
    server.destroy()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """Valkey that is started once, for tests that do not stop it."""
    server = ValkeyServer(STATE / "valkey")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[Redis]:
    """Client of an empty Valkey."""
    with Redis.from_url(valkey_server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def private_valkey() -> Iterator[ValkeyServer]:
    """Valkey that only this test uses, to stop, kill or restart it."""
    server = ValkeyServer(STATE / "private-valkey")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def environ(database_url: str, nats_url: str) -> dict[str, str]:
    """Environment of a worker, with configured streams that only this test uses.

    Change it before settings are loaded from it; after a change of the topology, call `configure`.
    """
    return configured(worker_environ(database_url, nats_url))


@pytest.fixture
def stream(environ: dict[str, str]) -> Iterator[Stream]:
    """Stream of this test, to publish and read messages."""
    with Stream(environ) as stream:
        yield stream


@pytest.fixture
def _command(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that a command makes to its process, which is the test process here."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logger.log_level
    yield
    logger.setLevel(level)
