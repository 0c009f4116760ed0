"""The examples of docs/idempotency.md: stores, circuit breaker and filters in front of them, checker, locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grantwire_idempotency import Claim, Duplicate, Key
from grantwire_idempotency.errors import LockHeldError
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from grantwire.database import Database
    from grantwire_idempotency import Store
    from tests.support.valkey import ValkeyServer


def assert_remembers(store: Store) -> None:
    """Check that the first check gets a claim and the second one is a duplicate."""
    # example store
    from datetime import timedelta

    claim = store.check(Key("order:17"), ttl=timedelta(minutes=5))
    if isinstance(claim, Claim):
        store.store_result(claim, '{"parcel": 1}', ttl=timedelta(hours=24))
    # end of example
    assert isinstance(claim, Claim)
    assert store.check(Key("order:17"), ttl=timedelta(minutes=5)) == Duplicate(Key("order:17"), '{"parcel": 1}')


def test_postgres_store(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostgresStore works with the settings of the environment."""
    for name, value in {**PLAINTEXT, "DATABASE_URL": database_url}.items():
        monkeypatch.setenv(name, value)
    # example postgres-store
    import os

    from grantwire.database import Database, DatabaseSettings
    from grantwire.settings import load
    from grantwire_idempotency import PostgresStore

    database = Database(load(DatabaseSettings, os.environ))  # once, outside the handler
    store = PostgresStore(database)
    # end of example
    assert_remembers(store)
    database.close()


def test_redis_store(valkey_server: ValkeyServer) -> None:
    """A RedisStore works with Redis and Valkey."""
    url = valkey_server.url
    # example redis-store
    from grantwire_idempotency import RedisStore
    from grantwire_idempotency.stores.redis import connect

    store = RedisStore(connect(url), prefix="example-idempotency:")  # url: redis:// or rediss://
    # end of example
    assert_remembers(store)


def test_memory_store() -> None:
    """A MemoryStore works within one process."""
    # example memory-store
    from grantwire_idempotency import MemoryStore

    store = MemoryStore(capacity=10_000)
    # end of example
    assert_remembers(store)


def test_breaker_and_filters(valkey_server: ValkeyServer) -> None:
    """A circuit breaker and a filter keep the guarantees of the store behind them."""
    url = valkey_server.url
    # example in-front
    from datetime import timedelta

    from grantwire_idempotency import BloomFilter, BreakerStore, FilteredStore, LruFilter, RedisStore
    from grantwire_idempotency.circuit_breaker import CircuitBreaker
    from grantwire_idempotency.stores.redis import connect

    store = BreakerStore(
        RedisStore(connect(url), prefix="example-in-front:"),
        CircuitBreaker("keys", failures=5, rest=timedelta(seconds=10)),
    )
    with_lru = FilteredStore(store, LruFilter(capacity=10_000))
    with_bloom = FilteredStore(store, BloomFilter(expected_keys=1_000_000, false_positive_rate=0.01))
    # end of example
    assert_remembers(with_lru)
    assert isinstance(with_bloom.check(Key("order:17"), timedelta(minutes=1)), Duplicate)


def test_checker(database: Database) -> None:
    """A checker processes a message once."""
    done: list[str] = []
    # example checker
    from datetime import timedelta

    from grantwire_idempotency import IdempotencyChecker, PostgresStore

    checker = IdempotencyChecker(PostgresStore(database))

    def consume(message_id: str) -> None:
        if not checker.mark_processing(message_id, timedelta(minutes=5)):
            return
        try:
            done.append(message_id)
        except Exception as error:
            checker.mark_failed(message_id, error)
            raise
        checker.mark_completed(message_id)

    # end of example
    consume("m1")
    consume("m1")
    assert done == ["m1"]
    assert checker.is_processed("m1")


def test_locks(database: Database) -> None:
    """A second owner cannot acquire a lock that is held."""
    reports: list[str] = []
    # example locks
    from datetime import timedelta

    from grantwire_idempotency import PostgresLocks  # or RedisLocks(connect(url))

    locks = PostgresLocks(database)

    with locks.acquire("nightly-report", ttl=timedelta(minutes=5), wait=timedelta(seconds=2)) as lock:
        reports.append("first half")
        lock.extend(timedelta(minutes=5))
        reports.append("second half")
    # end of example
    assert len(reports) == 2
    with locks.acquire("nightly-report", ttl=timedelta(minutes=5)), pytest.raises(LockHeldError):
        locks.acquire("nightly-report", ttl=timedelta(minutes=5))
