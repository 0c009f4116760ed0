"""asyncio: each message and its rows are committed together, with several messages at the same time.

Run it: DATABASE_URL=postgresql://… python asyncio_inbox.py

    2 of 3 messages were new
    stock: [('pen', 7)]
"""

import asyncio
import json
import os
from functools import partial
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from grantwire_idempotency import AsyncInboxGuard, Message


async def add(connection: AsyncConnection[Any], item: str, count: int) -> None:
    await connection.execute(
        "INSERT INTO async_stock AS stock VALUES (%s, %s)"
        " ON CONFLICT (item) DO UPDATE SET count = stock.count + EXCLUDED.count",
        (item, count),
    )


async def main() -> None:
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=4, open=False) as pool:
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS async_stock (item text PRIMARY KEY, count int)")
        guard = AsyncInboxGuard(pool, name="async-stock")
        messages = [
            Message(name, "delivery", json.dumps({"item": "pen", "count": count}))
            for name, count in (("m-1", 2), ("m-2", 5), ("m-1", 2))
        ]
        outcomes = await asyncio.gather(*(guard.run(message, partial(add, **message.payload)) for message in messages))
        print(f"{sum(not outcome.replayed for outcome in outcomes)} of {len(messages)} messages were new")
        async with pool.connection() as connection:
            rows = await (await connection.execute("SELECT item, count FROM async_stock")).fetchall()
        print(f"stock: {rows}")


if __name__ == "__main__":
    asyncio.run(main())
