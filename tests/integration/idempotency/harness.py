"""The stores under test, each with a clock that the test moves: nobody sleeps."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency.stores.memory import MemoryStore
from grantwire_idempotency.stores.postgres import PostgresStore
from grantwire_idempotency.stores.redis import RedisStore, connect
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from grantwire_idempotency.stores.interface import Store

START = datetime(2026, 1, 1, tzinfo=UTC)


class Harness(Protocol):
    """One kind of store. `name` and `url` are how another process makes a harness on the same keys."""

    name: str
    url: str

    def stores(self, count: int) -> Sequence[Store]:
        """As many stores, each with a connection of its own, on the same keys and the same time."""

    def advance(self, step: timedelta) -> None:
        """Let time pass."""

    def reset(self) -> None:
        """Delete every key, and go back to the start of time."""

    def close(self) -> None:
        """Close every connection."""


class MemoryHarness:
    """All stores are the same one, whose clock is a number."""

    name = "memory"
    url = ""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._store = MemoryStore(clock=lambda: self._seconds)

    def stores(self, count: int) -> Sequence[Store]:
        """The one that there is."""
        return [self._store] * count

    def advance(self, step: timedelta) -> None:
        """Turn the clock."""
        self._seconds += step.total_seconds()

    def reset(self) -> None:
        """Begin with another one."""
        self._seconds = 0.0
        self._store = MemoryStore(clock=lambda: self._seconds)

    def close(self) -> None:
        """There is nothing to close."""


class PostgresHarness:
    """Every store has a connection; all have the same clock in place of the database's."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._now = START
        self._opened = ExitStack()
        self._stores: list[Store] = []
        self._own = self._connect()

    def stores(self, count: int) -> Sequence[Store]:
        """Those that were used before, and as many new ones as it takes."""
        while len(self._stores) < count:
            self._stores.append(PostgresStore(self._connect(), clock=lambda: self._now))
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """Turn the clock."""
        self._now += step

    def reset(self) -> None:
        """Empty the table."""
        self._now = START
        with self._own.session() as connection:
            connection.execute("DELETE FROM processed_messages")

    def close(self) -> None:
        """Close the connections."""
        self._opened.close()

    def _connect(self) -> Database:
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": self.url}))
        self._opened.callback(database.close)
        return database


class RedisHarness:
    """Redis has its own clock: instead of moving it, every entry loses as much of its time to live."""

    name = "redis"

    def __init__(self, url: str, *, hash_tags: bool = False) -> None:
        self.url = url
        self._hash_tags = hash_tags
        self._opened = ExitStack()
        self._stores: list[Store] = []
        self._own = self._connect()

    def stores(self, count: int) -> Sequence[Store]:
        """Those that were used before, and as many new ones as it takes."""
        while len(self._stores) < count:
            self._stores.append(RedisStore(self._connect(), hash_tags=self._hash_tags))
        return self._stores[:count]

    def advance(self, step: timedelta) -> None:
        """Shorten what every entry has left; what has nothing left is gone."""
        shorten(self._own, step)

    def reset(self) -> None:
        """Empty the server."""
        self._own.flushall()

    def close(self) -> None:
        """Close the clients."""
        self._opened.close()

    def _connect(self) -> Redis:
        client = connect(self.url)
        self._opened.callback(client.close)
        return client


def shorten(client: Redis, step: timedelta) -> None:
    """Take `step` from the time to live of every entry."""
    milliseconds = step // timedelta(milliseconds=1)
    for name in client.scan_iter("*"):
        left = client.pttl(name)
        assert left != -1, f"{name!r} would never expire"
        if left > milliseconds:
            client.pexpire(name, left - milliseconds)
        else:
            client.delete(name)


# Of those that another process can share.
HARNESSES: dict[str, type[PostgresHarness | RedisHarness]] = {"postgres": PostgresHarness, "redis": RedisHarness}
