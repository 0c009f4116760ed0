"""asyncio: coroutines, a consumer and a store on one connection.

Run it: DATABASE_URL=postgresql://… python asyncio_tasks.py

    ship o-1
    parcel of o-1
    parcel of o-1
    invoice for m-1
    []
"""

import asyncio
import os

from grantwire_idempotency import AsyncIdempotentConsumer, AsyncPostgresStore, Message, idempotent

store = AsyncPostgresStore(os.environ["DATABASE_URL"])  # or an AsyncConnectionPool, for tasks in parallel


@idempotent(store, key=lambda order: order, name="ship")
async def ship(order: str) -> str:
    print(f"ship {order}")
    await asyncio.sleep(0)
    return f"parcel of {order}"


async def send_invoice(message: Message) -> None:
    print(f"invoice for {message.id}")


consumer = AsyncIdempotentConsumer(store, send_invoice, name="async-invoices")


async def main() -> None:
    print(await ship("o-1"))
    print(await ship("o-1"))
    print(await consumer.process_batch([Message("m-1"), Message("m-1")]))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
