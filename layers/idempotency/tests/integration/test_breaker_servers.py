"""C10: a circuit breaker with servers that are killed, and the round trips that a filter saves."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import (
    BloomFilter,
    BreakerStore,
    CircuitBreaker,
    Claim,
    Duplicate,
    FilteredStore,
    Key,
    LruFilter,
    PostgresStore,
    RedisStore,
    connect_redis,
)
from grantwire_idempotency.errors import CircuitOpenError, RetryableError
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire_idempotency import CheckResult, KeyFilter, Store
    from infra.local.servers.postgres import PostgresServer
    from infra.local.servers.server import Server
    from layers.idempotency.tests.integration.harness import RedisHarness
    from tests.support.valkey import ValkeyServer

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)


@pytest.fixture(params=["postgres", "redis"])
def stoppable(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Store]]:
    """Return a store and its server, which the test can stop."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("server")
        database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": server.url()}))
        yield server, PostgresStore(database)
        database.close()
    else:
        valkey: ValkeyServer = request.getfixturevalue("private_valkey")
        with connect_redis(valkey.url) as client:
            yield valkey, RedisStore(client)


def test_killed_server_is_not_called_until_trial_succeeds(stoppable: tuple[Server, Store]) -> None:
    """C10: after three failures, no call waits for the killed server; after a restart, one trial closes the circuit."""
    server, inner = stoppable
    seconds = 1000.0
    breaker = CircuitBreaker("store", failures=3, rest=timedelta(seconds=5), clock=lambda: seconds)
    store = BreakerStore(inner, breaker)
    key, claim = Key("breaker:1"), store.check(Key("breaker:2"), DAY)
    assert isinstance(claim, Claim)
    server.kill()
    try:
        for _ in range(3):
            with pytest.raises(RetryableError) as caught:
                store.check(key, MINUTE)
            assert not isinstance(caught.value, CircuitOpenError)
        with pytest.raises(CircuitOpenError):
            store.check(key, MINUTE)
        # Storing a result ignores the open circuit, because the work is done.
        with pytest.raises(RetryableError) as caught:
            store.store_result(claim, "done", DAY)
        assert not isinstance(caught.value, CircuitOpenError)
        seconds += 5
        with pytest.raises(RetryableError) as caught:
            store.check(key, MINUTE)
        assert not isinstance(caught.value, CircuitOpenError)
    finally:
        server.start()
    with pytest.raises(CircuitOpenError):
        store.check(key, MINUTE)
    seconds += 5
    assert isinstance(store.check(key, MINUTE), Claim)
    assert breaker.closed


@pytest.mark.parametrize("key_filter", [LruFilter(10), BloomFilter(10)], ids=["lru", "bloom"])
def test_known_duplicate_in_redis_costs_one_round_trip(redis_harness: RedisHarness, key_filter: KeyFilter) -> None:
    """C10: with and without a filter; a new key costs one as well."""
    new, known = Key("new"), Key("known")
    with RoundTrips(redis_harness.url) as proxy, connect_redis(proxy.url) as client:
        bare = RedisStore(client)
        store = FilteredStore(bare, key_filter)

        def count_round_trips(store: Store, key: Key) -> tuple[type[CheckResult], int]:
            before = proxy.count
            check = store.check(key, MINUTE)
            return type(check), proxy.count - before

        claim = store.check(known, MINUTE)
        assert isinstance(claim, Claim)
        store.store_result(claim, "done", DAY)
        bare.check(known, MINUTE)  # loads the script
        assert count_round_trips(bare, known) == (Duplicate, 1)
        store.get_result(known)  # loads its script
        assert count_round_trips(store, known) == (Duplicate, 1)
        assert count_round_trips(store, new) == (Claim, 1)


def test_one_of_many_workers_with_wrong_filters_gets_key(redis_harness: RedisHarness) -> None:
    """C10: even if every filter claims to know the key, the claim of the store decides."""

    class AlwaysTrueFilter:
        """A filter that claims to contain every key."""

        def may_contain(self, _: str) -> bool:
            """Return True."""
            return True

        def add(self, _: str) -> None:
            """Do nothing."""

    stores = [FilteredStore(store, AlwaysTrueFilter()) for store in redis_harness.stores(8)]
    for number in range(10):
        key = Key(f"order:{number}")

        def check(worker: int, key: Key = key) -> CheckResult:
            return stores[worker].check(key, MINUTE)

        (claim,) = [result for result in run_concurrently(8, check) if isinstance(result, Claim)]
        stores[0].store_result(claim, "done", DAY)
        assert run_concurrently(8, check) == [Duplicate(key, "done")] * 8
