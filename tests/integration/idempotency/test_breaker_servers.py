"""C10: what stands around a store, with real servers that really go away; and what a hint saves."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency.circuit_breaker import CircuitBreaker
from grantwire_idempotency.errors import CircuitOpenError, RetryableError
from grantwire_idempotency.stores.breaker import BreakerStore
from grantwire_idempotency.stores.filters import BloomFilter, FilteredStore, LruFilter
from grantwire_idempotency.stores.interface import Claim, Duplicate, Key
from grantwire_idempotency.stores.postgres import PostgresStore
from grantwire_idempotency.stores.redis import RedisStore, connect
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency.stores.filters import KeyFilter
    from grantwire_idempotency.stores.interface import CheckResult, Store
    from infra.local.servers.postgres import PostgresServer
    from infra.local.servers.server import Server
    from tests.integration.idempotency.harness import RedisHarness
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)


@pytest.fixture(params=["postgres", "redis"])
def stoppable(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Store]]:
    """A store, and the server that it is in, to be stopped."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("server")
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))
        yield server, PostgresStore(database)
        database.close()
    else:
        valkey: ValkeyServer = request.getfixturevalue("private_valkey")
        with connect(valkey.url) as client:
            yield valkey, RedisStore(client)


def test_a_server_that_is_away_is_not_asked_until_it_may_be_back(stoppable: tuple[Server, Store]) -> None:
    """C10: killed: three that find out, then none that waits; started again: one that finds out, then all."""
    server, inner = stoppable
    seconds = 1000.0
    breaker = CircuitBreaker("store", failures=3, rest=timedelta(seconds=5), clock=lambda: seconds)
    store = BreakerStore(inner, breaker)
    key, held = Key("breaker:1"), store.check(Key("breaker:2"), DAY)
    assert isinstance(held, Claim)
    server.kill()
    try:
        for _ in range(3):
            with pytest.raises(RetryableError) as caught:
                store.check(key, MINUTE)
            assert not isinstance(caught.value, CircuitOpenError)
        with pytest.raises(CircuitOpenError):
            store.check(key, MINUTE)
        # A result is tried all the same: the work is done.
        with pytest.raises(RetryableError) as caught:
            store.store_result(held, "done", DAY)
        assert not isinstance(caught.value, CircuitOpenError)
        seconds += 5
        with pytest.raises(RetryableError) as caught:
            store.check(key, MINUTE)
        assert not isinstance(caught.value, CircuitOpenError)
    finally:
        server.start()
    with pytest.raises(CircuitOpenError):
        store.check(key, MINUTE)
    store.store_result(held, "done", DAY)
    assert breaker.closed
    assert isinstance(store.check(key, MINUTE), Claim)
    assert store.check(held.key, MINUTE) == Duplicate(held.key, "done")


@pytest.mark.parametrize("hint", [LruFilter(10), BloomFilter(10)], ids=["lru", "bloom"])
def test_a_known_duplicate_in_redis_costs_one_round_trip(redis_harness: RedisHarness, hint: KeyFilter) -> None:
    """C10: instead of two; a new key costs what it did."""
    new, known = Key("new"), Key("known")
    with RoundTrips(redis_harness.url) as way, connect(way.url) as client:
        bare = RedisStore(client)
        store = FilteredStore(bare, hint)

        def trips(store: Store, key: Key) -> tuple[type[CheckResult], int]:
            before = way.count
            found = store.check(key, MINUTE)
            return type(found), way.count - before

        claim = store.check(known, MINUTE)
        assert isinstance(claim, Claim)
        store.store_result(claim, "done", DAY)
        bare.check(known, MINUTE)  # which loads the script
        assert trips(bare, known) == (Duplicate, 2)
        assert trips(store, known) == (Duplicate, 1)
        assert trips(store, new) == (Claim, 1)


def test_of_many_workers_with_hints_one_gets_a_key(redis_harness: RedisHarness) -> None:
    """C10: real connections, hints that are all sure that they know it: still the store's claim decides."""

    class Sure:
        """Has seen everything."""

        def may_contain(self, _: str) -> bool:
            """Yes."""
            return True

        def add(self, _: str) -> None:
            """It knew."""

    stores = [FilteredStore(store, Sure()) for store in redis_harness.stores(8)]
    for number in range(10):
        key = Key(f"order:{number}")

        def check(worker: int, key: Key = key) -> CheckResult:
            return stores[worker].check(key, MINUTE)

        (claim,) = [found for found in at_once(8, check) if isinstance(found, Claim)]
        stores[0].store_result(claim, "done", DAY)
        assert at_once(8, check) == [Duplicate(key, "done")] * 8
