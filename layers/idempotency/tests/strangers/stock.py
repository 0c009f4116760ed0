"""Book deliveries with asyncio: an inbox, a lock, compensation, and a breaker around a store in Redis."""

import asyncio
import json
import os
from datetime import timedelta
from typing import Any, assert_type

from psycopg import AsyncConnection

from grantwire_idempotency import (
    AsyncIdempotentConsumer,
    AsyncInboxGuard,
    AsyncRedisStore,
    BreakerStore,
    CircuitBreaker,
    Compensation,
    FilteredStore,
    Lock,
    LockManager,
    LruFilter,
    Message,
    Outcome,
    RedisLocks,
    RedisStore,
    Serializer,
    connect_redis,
    connect_redis_async,
    idempotent,
)
from grantwire_idempotency.errors import LockHeldError


class TupleSerializer:
    """Keeps pairs, which JSON would turn into lists."""

    def dump(self, value: Any) -> str:
        return json.dumps(list(value))

    def load(self, text: str) -> Any:
        return tuple(json.loads(text))


serializer: Serializer = TupleSerializer()
client = connect_redis(os.environ["REDIS_URL"], max_connections=5)
breaker = CircuitBreaker("stock", failures=3, rest=timedelta(seconds=5))
store = FilteredStore(BreakerStore(RedisStore(client, prefix="stock:"), breaker), LruFilter(capacity=100))


def by_item(item: str, _count: int) -> str:
    return item


@idempotent(store, key=by_item, name="reserve", serializer=serializer)
def reserve(item: str, count: int) -> tuple[str, int]:
    with Compensation() as undo:
        undo.on_failure(print, "undone")
        return (item, count)


def report(locks: LockManager) -> str:
    try:
        with locks.acquire("report", timedelta(seconds=30), wait=timedelta(seconds=1)) as lock:
            held: Lock = lock
            return f"fence {held.fence > 0}"
    except LockHeldError as error:
        return str(error)


async def book(connection: AsyncConnection[Any]) -> int:
    cursor = await connection.execute("SELECT 7")
    row = await cursor.fetchone()
    return 0 if row is None else int(row[0])


async def count(message: Message[dict[str, int]]) -> int:
    await asyncio.sleep(0)
    return message.payload["count"]


async def count_all() -> list[str]:
    async with connect_redis_async(os.environ["REDIS_URL"], max_connections=5) as own:
        consumer = AsyncIdempotentConsumer(AsyncRedisStore(own), count, name="count")
        outcome = await consumer.process(Message("c-0", body='{"count": 0}'))
        assert_type(outcome, Outcome[int])
        messages = [Message[dict[str, int]](f"c-{number}", body='{"count": 1}') for number in range(9)]
        return await consumer.process_batch(messages, concurrency=4)


async def main() -> None:
    guard = AsyncInboxGuard(os.environ["DATABASE_URL"], name="stock")
    first = await guard.run(Message("d-1"), book)
    second = await guard.run(Message("d-1"), book)
    assert_type(first, Outcome[int])
    await guard.close()
    print(await count_all())
    print(first.value, first.replayed, second.value, second.replayed)
    print(reserve("pen", 2), reserve("pen", 3), report(RedisLocks(client)))
    client.close()


if __name__ == "__main__":
    asyncio.run(main())
