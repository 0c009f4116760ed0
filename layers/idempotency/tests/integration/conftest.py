from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from infra.local.system.processes import wait_until
from layers.idempotency.tests.integration.harness import (
    AsyncPostgresHarness,
    AsyncRedisHarness,
    MemoryHarness,
    PostgresHarness,
    RedisHarness,
    SqliteHarness,
)
from tests.support.servers import STATE
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Databases


@pytest.fixture
def memory_harness() -> MemoryHarness:
    """Return a harness with a memory store."""
    return MemoryHarness()


@pytest.fixture
def sqlite_harness(tmp_path: Path) -> Iterator[SqliteHarness]:
    """Return a harness with a new file."""
    harness = SqliteHarness(str(tmp_path / "keys.db"))
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def open_redis(valkey_server: ValkeyServer) -> Iterator[RedisHarness]:
    """Return a harness whose connections all tests of a module share."""
    harness = RedisHarness(valkey_server.url)
    yield harness
    harness.close()


@pytest.fixture
def redis_harness(open_redis: RedisHarness) -> RedisHarness:
    """Return a harness with an empty Redis."""
    open_redis.reset()
    return open_redis


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "fences"])
def open_async_redis(request: pytest.FixtureRequest, valkey_server: ValkeyServer) -> Iterator[AsyncRedisHarness]:
    """Return a harness of asynchronous stores, whose connections all tests of a module share."""
    harness = AsyncRedisHarness(valkey_server.url, fences=request.param)
    yield harness
    harness.close()


@pytest.fixture
def async_redis_harness(open_async_redis: AsyncRedisHarness) -> AsyncRedisHarness:
    """Return a harness of asynchronous stores with an empty Redis."""
    open_async_redis.reset()
    return open_async_redis


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyServer]:
    """Start a Redis Cluster of one node with all slots, once per session."""
    server = ValkeyServer(STATE / "valkey-cluster", cluster=True)
    server.start()
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.config_set("cluster-require-full-coverage", "no")
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        assert wait_until(lambda: "cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), 30)
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def open_cluster(valkey_cluster: ValkeyServer) -> Iterator[RedisHarness]:
    """Return a harness whose connections all tests of a module share; its stores draw fencing numbers."""
    harness = RedisHarness(valkey_cluster.url, hash_tags=True, fences=True)
    yield harness
    harness.close()


@pytest.fixture
def cluster_harness(open_cluster: RedisHarness) -> RedisHarness:
    """Return a harness with an empty Redis Cluster."""
    open_cluster.reset()
    return open_cluster


@pytest.fixture(scope="module")
def open_postgres(databases: Databases) -> Iterator[PostgresHarness]:
    """Return a harness whose database and connections all tests of a module share."""
    url = databases.migrated()
    harness = PostgresHarness(url)
    yield harness
    harness.close()
    databases.drop(url)


@pytest.fixture
def postgres_harness(open_postgres: PostgresHarness) -> PostgresHarness:
    """Return a harness with an empty table."""
    open_postgres.reset()
    return open_postgres


@pytest.fixture(scope="module")
def open_async_postgres(databases: Databases) -> Iterator[AsyncPostgresHarness]:
    """Return a harness of asynchronous stores, whose database and connections all tests of a module share."""
    url = databases.migrated()
    harness = AsyncPostgresHarness(url)
    yield harness
    harness.close()
    databases.drop(url)


@pytest.fixture
def async_postgres_harness(open_async_postgres: AsyncPostgresHarness) -> AsyncPostgresHarness:
    """Return a harness of asynchronous stores with an empty table."""
    open_async_postgres.reset()
    return open_async_postgres
