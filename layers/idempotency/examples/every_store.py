"""The stores, and their two most important methods: of all callers, one gets the claim; the others get its result.

Run it: DATABASE_URL=postgresql://… REDIS_URL=redis://localhost:6379 python every_store.py

    PostgresStore: Claim InProgress Duplicate {"parcel": 1}
    RedisStore: Claim InProgress Duplicate {"parcel": 1}
    SqliteStore: Claim InProgress Duplicate {"parcel": 1}
    MemoryStore: Claim InProgress Duplicate {"parcel": 1}
"""

import os
from datetime import timedelta

from grantwire_idempotency import (
    Claim,
    Duplicate,
    Key,
    MemoryStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    Store,
    connect_redis,
)

stores: list[Store] = [
    PostgresStore(os.environ["DATABASE_URL"]),  # or a psycopg connection, or a pool of psycopg_pool
    RedisStore(connect_redis(os.environ["REDIS_URL"]), prefix="shop:"),  # or your own client of redis-py
    SqliteStore("keys.db"),  # created on first use
    MemoryStore(capacity=10_000),
]


def use(store: Store) -> None:
    key, lease, ttl = Key("order:17"), timedelta(minutes=5), timedelta(hours=24)
    claim = store.check(key, lease)
    second = store.check(key, lease)
    if isinstance(claim, Claim):
        store.store_result(claim, '{"parcel": 1}', ttl)
    third = store.check(key, lease)
    result = third.result if isinstance(third, Duplicate) else None
    print(f"{type(store).__name__}:", *(type(check).__name__ for check in (claim, second, third)), result)


if __name__ == "__main__":
    for store in stores:
        use(store)
