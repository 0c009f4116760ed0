"""The servers of the tests, as fixtures: one PostgreSQL of each version, one NATS and one Valkey for a session."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from redis import Redis

from infra.local.servers.postgres import PostgresServer
from infra.local.system import temporary
from infra.local.system.memory import in_memory
from tests.support.migrations import migrate
from tests.support.paths import ROOT
from tests.support.servers import STATE, Databases, clusters, nats
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.secrets_manager import FakeSecretsManager
    from tests.support.servers import Cluster

Rows = psycopg.Connection[dict[str, Any]]


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
def rows(owner_url: str) -> Iterator[Rows]:
    """Connection of the owner, to check rows that were written and to hold locks."""
    with psycopg.connect(owner_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """Embedded PostgreSQL for tests that stop, kill or freeze their server."""
    server = PostgresServer(in_memory(STATE) / "private", settings={"fsync": "off"})
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
    server = ValkeyServer(in_memory(STATE) / "private-valkey")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def secrets_manager() -> Iterator[FakeSecretsManager]:
    """A Secrets Manager, which this process uses."""
    from tests.support.secrets_manager import running_secrets_manager  # noqa: PLC0415  # botocore is slow to import

    with running_secrets_manager() as manager:
        yield manager


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder in the temporary directory of the system; that of the tests is below the checkout."""
    monkeypatch.delenv(temporary.VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory(prefix="grantwire-wheel-") as folder:
        path = Path(folder).resolve()
        assert not path.is_relative_to(ROOT)
        yield path
