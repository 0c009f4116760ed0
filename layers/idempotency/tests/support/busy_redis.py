"""Call a job 400 times as tasks, or 300 times in threads, with more callers than connections; print what happened.

Run it: python -m layers.idempotency.tests.support.busy_redis URL (tasks|threads) (plain|connect)
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from grantwire_idempotency import (
    AsyncRedisStore,
    FailMode,
    NoMetrics,
    RedisStore,
    connect_redis,
    connect_redis_async,
    idempotent,
)

# As redis-py 8 has by default. Older versions have no limit.
CONNECTIONS = 100
TASKS, THREADS = 400, 300


def run_tasks(url: str, kind: str) -> tuple[Counter[str], Counter[str]]:
    """Call the job twice for each of 200 keys, all at the same time."""
    runs: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    name = uuid.uuid4().hex

    async def main() -> None:
        create: Any = redis.asyncio.Redis.from_url if kind == "plain" else connect_redis_async
        client = create(url, max_connections=CONNECTIONS)
        store = AsyncRedisStore(client)

        @idempotent(store, key=str, name=name, fail_mode=FailMode.OPEN, metrics=NoMetrics())
        async def job(number: int) -> None:
            runs[str(number)] += 1
            await asyncio.sleep(0.01)

        calls = [job(number % (TASKS // 2)) for number in range(TASKS)]
        errors.update(name_of(result) for result in await asyncio.gather(*calls, return_exceptions=True))
        await client.aclose()

    asyncio.run(main())
    return runs, errors


def run_threads(url: str, kind: str) -> tuple[Counter[str], Counter[str]]:
    """Call the job twice for each of 150 keys, all at the same time."""
    runs: Counter[str] = Counter()
    create: Any = redis.Redis.from_url if kind == "plain" else connect_redis
    client = create(url, max_connections=CONNECTIONS // 4)
    start, lock = threading.Barrier(THREADS), threading.Lock()

    @idempotent(RedisStore(client), key=str, name=uuid.uuid4().hex, fail_mode=FailMode.OPEN, metrics=NoMetrics())
    def job(number: int) -> None:
        with lock:
            runs[str(number)] += 1

    def call(number: int) -> str:
        start.wait(60)
        try:
            job(number % (THREADS // 2))
        except Exception as error:  # noqa: BLE001 - counted
            return name_of(error)
        return name_of(None)

    with ThreadPoolExecutor(THREADS) as pool:
        errors = Counter(pool.map(call, range(THREADS)))
    client.close()
    return runs, errors


def name_of(result: object) -> str:
    """Return the name of an error."""
    return type(result).__name__ if isinstance(result, Exception) else ""


if __name__ == "__main__":
    run = run_tasks if sys.argv[2] == "tasks" else run_threads
    runs, errors = run(sys.argv[1], sys.argv[3])
    sys.stdout.write(json.dumps({"redis": redis.__version__, "runs": runs, "errors": errors}))
