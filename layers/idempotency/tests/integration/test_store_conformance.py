"""C3, C4: the guarantees of `stores/interface.py`, verified for each store; the test controls time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import Key
from grantwire_idempotency.conformance.suite import StoreConformance, claim_key, outcome
from layers.idempotency.tests.integration.harness import AsyncBreakerHarness, BreakerHarness, FilteredHarness
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency import Store
    from layers.idempotency.tests.integration.harness import (
        AsyncPostgresHarness,
        AsyncRedisHarness,
        Harness,
        MemoryHarness,
        PostgresHarness,
        RedisHarness,
        SqliteHarness,
    )

MINUTE = timedelta(minutes=1)
KEY = Key("order:create:abc-123")


class SharedConformance(StoreConformance):
    """The guarantees of a store that several processes share."""

    def test_claim_of_killed_process_expires(self, harness: Harness, store: Store) -> None:
        """C4: after SIGKILL the key is in progress until the claim expires, then it is free."""
        command = [
            sys.executable,
            "-m",
            "layers.idempotency.tests.support.idempotency_claim",
            harness.name,
            harness.url,
            KEY.value,
            "600",
        ]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH}
        with subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "Claim\n"
            worker.kill()
            assert worker.wait() == -signal.SIGKILL
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=9))
        assert outcome(store.check(KEY, MINUTE)) == "InProgress"
        harness.advance(timedelta(minutes=2))
        claim_key(store, KEY)


class TestMemoryStore(StoreConformance):
    """The memory store."""

    @pytest.fixture
    def harness(self, memory_harness: MemoryHarness) -> Harness:
        """Provide the stores."""
        return memory_harness


class TestSqliteStore(SharedConformance):
    """The SQLite store."""

    @pytest.fixture
    def harness(self, sqlite_harness: SqliteHarness) -> Harness:
        """Provide the stores."""
        return sqlite_harness


class TestWrappedStores(StoreConformance):
    """The stores that wrap another one, and the asynchronous memory store: all in memory."""

    @pytest.fixture(params=[FilteredHarness, BreakerHarness, AsyncBreakerHarness])
    def harness(self, request: pytest.FixtureRequest) -> Iterator[Harness]:
        """Provide the stores."""
        harness: Harness = request.param()
        yield harness
        harness.close()


class TestRedisStore(SharedConformance):
    """The Redis store."""

    @pytest.fixture
    def harness(self, redis_harness: RedisHarness) -> Harness:
        """Provide the stores."""
        return redis_harness


class TestAsyncRedisStore(StoreConformance):
    """C22: the asynchronous Redis store, without and with fencing numbers."""

    @pytest.fixture
    def harness(self, async_redis_harness: AsyncRedisHarness) -> Harness:
        """Provide the stores."""
        return async_redis_harness


class TestRedisStoreInACluster(StoreConformance):
    """The Redis store in Redis Cluster, where all entries of a key must be on one node."""

    @pytest.fixture
    def harness(self, cluster_harness: RedisHarness) -> Harness:
        """Provide the stores."""
        return cluster_harness


class TestPostgresStore(SharedConformance):
    """The PostgreSQL store, on each version of PostgreSQL."""

    @pytest.fixture
    def harness(self, postgres_harness: PostgresHarness) -> Harness:
        """Provide the stores."""
        return postgres_harness


@newest_postgres
class TestAsyncPostgresStore(StoreConformance):
    """C22: the asynchronous PostgreSQL store, whose SQL is that of the other one."""

    @pytest.fixture
    def harness(self, async_postgres_harness: AsyncPostgresHarness) -> Harness:
        """Provide the stores."""
        return async_postgres_harness
