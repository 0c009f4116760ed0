"""asyncio: coroutines, a consumer and a store on one connection.

Run it: DATABASE_URL=postgresql://… python asyncio_tasks.py

    ship o-1
    parcel of o-1
    parcel of o-1
    invoice for o-1
    []
"""

import asyncio
import os
from datetime import timedelta

from grantwire_idempotency import (
    AsyncIdempotentConsumer,
    AsyncPostgresStore,
    Message,
    argument,
    current_async_claim,
    idempotent,
)

store = AsyncPostgresStore(os.environ["DATABASE_URL"])  # or an AsyncConnectionPool, for tasks in parallel


@idempotent(store, key=argument("order"), name="ship")
async def ship(order: str) -> str:
    await current_async_claim().extend(timedelta(minutes=5))
    print(f"ship {order}")
    await asyncio.sleep(0)
    return f"parcel of {order}"


async def send_invoice(message: Message[dict[str, str]]) -> None:
    print(f"invoice for {message.payload['order']}")


consumer = AsyncIdempotentConsumer(store, send_invoice, name="async-invoices")


async def main() -> None:
    print(await ship("o-1"))
    print(await ship("o-1"))
    messages = [Message(name, body='{"order": "o-1"}') for name in ("m-1", "m-1")]
    print(await consumer.process_batch(messages, concurrency=10))  # the ids of those that must be delivered again
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
