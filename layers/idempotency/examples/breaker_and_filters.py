"""A circuit breaker and a filter in front of a store.

Run it: REDIS_URL=redis://localhost:6379 python breaker_and_filters.py

    mail for 2026-1
    RetryableError
    RetryableError
    RetryableError
    CircuitOpenError
"""

# shown from here
import logging
import os
from datetime import timedelta

from grantwire_idempotency import (
    BloomFilter,
    BreakerStore,
    CircuitBreaker,
    FilteredStore,
    Key,
    RedisStore,
    connect_redis,
    idempotent,
)
from grantwire_idempotency.errors import RetryableError


def open_store(url: str) -> FilteredStore:
    breaker = CircuitBreaker("keys", failures=3, rest=timedelta(seconds=10))
    store = BreakerStore(RedisStore(connect_redis(url), prefix="mails:"), breaker)
    return FilteredStore(store, BloomFilter(expected_keys=1_000_000))  # or LruFilter(capacity=10_000)


@idempotent(open_store(os.environ["REDIS_URL"]), key=lambda invoice: invoice, name="mails")
def send(invoice: str) -> None:
    print(f"mail for {invoice}")


# shown to here


if __name__ == "__main__":
    logging.getLogger("grantwire_idempotency").setLevel(logging.CRITICAL)  # in production, keep the log
    send("2026-1")
    send("2026-1")
    without_server = open_store("redis://127.0.0.1:1")
    for _ in range(4):
        try:
            without_server.check(Key("2026-2"), timedelta(minutes=5))
        except RetryableError as error:  # the last one is raised without a call of the server
            print(type(error).__name__)
