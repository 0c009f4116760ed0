"""The stores under test, each with a clock that the test advances, so no test sleeps."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import (
    AsyncBreakerStore,
    AsyncMemoryStore,
    AsyncPostgresStore,
    AsyncRedisStore,
    BreakerStore,
    CircuitBreaker,
    FilteredStore,
    Key,
    LruFilter,
    MemoryStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    connect_redis,
    connect_redis_async,
)
from grantwire_idempotency.conformance.blocking import BlockingStore
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from grantwire_idempotency import Store

_SHIFT = """
UPDATE processed_messages
   SET started_at      = started_at - %(step)s,
       completed_at    = completed_at - %(step)s,
       expires_at      = expires_at - %(step)s,
       created_at      = created_at - %(step)s,
       updated_at      = updated_at - %(step)s,
       claimed_until   = claimed_until - %(step)s,
       completed_until = completed_until - %(step)s,
       result_until    = result_until - %(step)s,
       failed_until    = failed_until - %(step)s
"""

_SHIFT_SQLITE = """
UPDATE processed_messages
   SET claimed_until   = claimed_until - :step,
       completed_at    = completed_at - :step,
       completed_until = completed_until - :step,
       result_until    = result_until - :step,
       failed_until    = failed_until - :step,
       expires_at      = expires_at - :step
"""


class Harness(Protocol):
    """One kind of store. With `name` and `url`, another process creates a harness with the same keys."""

    name: str
    url: str

    def stores(self, count: int) -> Sequence[Store]:
        """Return this many stores with the same keys and clock, each with its own connection."""

    def advance(self, step: timedelta) -> None:
        """Advance the clock."""

    def reset(self) -> None:
        """Delete every key and reset the clock."""

    def close(self) -> None:
        """Close every connection."""


class MemoryHarness:
    """Returns the same memory store each time; its clock is a number."""

    name = "memory"
    url = ""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._resources = ExitStack()
        self._store = self._open_store()

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        return [self._store] * count

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        self._seconds += step.total_seconds()

    def reset(self) -> None:
        """See `Harness`."""
        self.close()
        self._seconds = 0.0
        self._store = self._open_store()

    def close(self) -> None:
        """See `Harness`."""
        self._resources.close()

    def _open_store(self) -> Store:
        return MemoryStore(clock=lambda: self._seconds)


class FilteredHarness(MemoryHarness):
    """A memory store behind a filter."""

    def _open_store(self) -> Store:
        return FilteredStore(super()._open_store(), LruFilter(100))


class BreakerHarness(MemoryHarness):
    """A memory store behind a circuit breaker."""

    def _open_store(self) -> Store:
        return BreakerStore(super()._open_store(), CircuitBreaker("store", failures=3, rest=timedelta(minutes=1)))


class AsyncBreakerHarness(MemoryHarness):
    """An asynchronous memory store behind a circuit breaker; each store has its own event loop."""

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        return [self._block() for _ in range(count)]

    def _open_store(self) -> Store:
        store = AsyncMemoryStore(clock=lambda: self._seconds)
        self._guarded = AsyncBreakerStore(store, CircuitBreaker("store", failures=3, rest=timedelta(minutes=1)))
        return self._block()

    def _block(self) -> Store:
        return BlockingStore(self._guarded, self._resources.enter_context(asyncio.Runner()))


class PostgresHarness:
    """Each store has its own connection. PostgreSQL uses its own clock, so advancing time shifts every row instead."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._resources = ExitStack()
        self._stores: list[Store] = []
        self._connection = self._connect()

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        while len(self._stores) < count:
            self._stores.append(self._open_store())
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        with self._connection.session() as connection:
            connection.execute(_SHIFT, {"step": step})

    def reset(self) -> None:
        """See `Harness`."""
        with self._connection.session() as connection:
            connection.execute("DELETE FROM processed_messages")

    def close(self) -> None:
        """See `Harness`."""
        self._resources.close()

    def _open_store(self) -> Store:
        return PostgresStore(self._connect())

    def _connect(self) -> Database:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": self.url}))
        self._resources.callback(database.close)
        return database


class AsyncPostgresHarness(PostgresHarness):
    """Asynchronous stores, each in its own event loop."""

    def _open_store(self) -> Store:
        runner = self._resources.enter_context(asyncio.Runner())
        store = AsyncPostgresStore(self.url)
        self._resources.callback(lambda: runner.run(store.close()))
        return BlockingStore(store, runner)


class RedisHarness:
    """Redis uses its own clock, so advancing time shortens the TTL of every entry instead."""

    name = "redis"

    def __init__(self, url: str, *, hash_tags: bool = False, fences: bool = False) -> None:
        self.url = url
        self.fences = fences
        self._hash_tags = hash_tags
        self._resources = ExitStack()
        self._stores: list[Store] = []
        self._connection = self._connect()

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        while len(self._stores) < count:
            self._stores.append(self._open_store())
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        shorten(self._connection, step)

    def reset(self) -> None:
        """See `Harness`."""
        self._connection.flushall()

    def close(self) -> None:
        """See `Harness`."""
        self._resources.close()

    def _open_store(self) -> Store:
        return RedisStore(self._connect(), hash_tags=self._hash_tags, fences=self.fences)

    def _connect(self) -> Redis:
        client = connect_redis(self.url)
        self._resources.callback(client.close)
        return client


class AsyncRedisHarness(RedisHarness):
    """Asynchronous stores, each in its own event loop."""

    def _open_store(self) -> Store:
        runner = self._resources.enter_context(asyncio.Runner())
        client = connect_redis_async(self.url)
        self._resources.callback(lambda: runner.run(client.aclose()))
        return BlockingStore(AsyncRedisStore(client, fences=self.fences), runner)


class SqliteHarness:
    """Each store has its own connection to the file. SQLite uses its own clock, so advancing time shifts every row."""

    name = "sqlite"

    def __init__(self, url: str) -> None:
        self.url = url
        self._stores: list[SqliteStore] = []

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        while len(self._stores) < count:
            self._stores.append(SqliteStore(self.url))
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        self.stores(1)[0].get_result(Key("table"))  # creates it
        with closing(sqlite3.connect(self.url)) as connection, connection:
            connection.execute(_SHIFT_SQLITE, {"step": step // timedelta(milliseconds=1)})

    def reset(self) -> None:
        """See `Harness`."""
        self.advance(timedelta(0))
        with closing(sqlite3.connect(self.url)) as connection, connection:
            connection.execute("DELETE FROM processed_messages")

    def close(self) -> None:
        """See `Harness`."""
        for store in self._stores:
            store.close()


def shorten(client: Redis, step: timedelta) -> None:
    """Shorten the TTL of every entry by `step`."""
    milliseconds = step // timedelta(milliseconds=1)
    for name in client.scan_iter("*"):
        remaining = client.pttl(name)
        assert remaining != -1, f"{name!r} would never expire"
        if remaining > milliseconds:
            client.pexpire(name, remaining - milliseconds)
        else:
            client.delete(name)


# The harnesses of stores that another process can share.
HARNESSES: dict[str, type[PostgresHarness | RedisHarness | SqliteHarness]] = {
    "postgres": PostgresHarness,
    "redis": RedisHarness,
    "sqlite": SqliteHarness,
}
