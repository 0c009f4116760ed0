"""The stores under test, each with a clock that the test advances, so no test sleeps."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency.stores.memory import MemoryStore
from grantwire_idempotency.stores.postgres import PostgresStore
from grantwire_idempotency.stores.redis import AsyncRedisStore, RedisStore, connect, connect_async
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from grantwire_idempotency.stores.interface import Store

START = datetime(2026, 1, 1, tzinfo=UTC)


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
        self._store = MemoryStore(clock=lambda: self._seconds)

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        return [self._store] * count

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        self._seconds += step.total_seconds()

    def reset(self) -> None:
        """See `Harness`."""
        self._seconds = 0.0
        self._store = MemoryStore(clock=lambda: self._seconds)

    def close(self) -> None:
        """See `Harness`."""


class PostgresHarness:
    """Each store has its own connection; all stores share a clock that replaces the database's."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._now = START
        self._resources = ExitStack()
        self._stores: list[Store] = []
        self._connection = self._connect()

    def stores(self, count: int) -> Sequence[Store]:
        """See `Harness`."""
        while len(self._stores) < count:
            self._stores.append(PostgresStore(self._connect(), clock=lambda: self._now))
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """See `Harness`."""
        self._now += step

    def reset(self) -> None:
        """See `Harness`."""
        self._now = START
        with self._connection.session() as connection:
            connection.execute("DELETE FROM processed_messages")

    def close(self) -> None:
        """See `Harness`."""
        self._resources.close()

    def _connect(self) -> Database:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": self.url}))
        self._resources.callback(database.close)
        return database


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
        client = connect(self.url)
        self._resources.callback(client.close)
        return client


class AsyncRedisHarness(RedisHarness):
    """Asynchronous stores that draw fencing numbers, each in its own event loop."""

    def __init__(self, url: str) -> None:
        super().__init__(url, fences=True)

    def _open_store(self) -> Store:
        runner = self._resources.enter_context(asyncio.Runner())
        client = connect_async(self.url)
        self._resources.callback(lambda: runner.run(client.aclose()))
        return cast("Store", _Blocking(AsyncRedisStore(client, fences=self.fences), runner))


class _Blocking:
    """The methods of an asynchronous store as plain functions."""

    def __init__(self, store: AsyncRedisStore, runner: asyncio.Runner) -> None:
        self._store = store
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *arguments: self._runner.run(method(*arguments))


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
HARNESSES: dict[str, type[PostgresHarness | RedisHarness]] = {"postgres": PostgresHarness, "redis": RedisHarness}
