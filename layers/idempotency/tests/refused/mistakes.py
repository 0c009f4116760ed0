"""Mistakes of a stranger: mypy and pyright report an error in each line that ends with `refused`, and in no other."""

from datetime import timedelta
from typing import Any

from grantwire_idempotency import (
    AsyncIdempotentConsumer,
    AsyncMemoryStore,
    Backoff,
    IdempotentConsumer,
    InboxGuard,
    MemoryStore,
    Message,
    StoredResponse,
    TransactionGuard,
    argument,
    current_async_claim,
    current_claim,
    idempotent,
)


@idempotent(MemoryStore(), key=argument("order"))
async def ship(order: str) -> str:
    return order


@idempotent(AsyncMemoryStore(), key=argument("order"))  # refused
def pack(order: str) -> str:
    return order


@idempotent(MemoryStore(), key=argument("order"))
def sell(order: str) -> int:
    current_claim().extend(timedelta(minutes=1))
    return len(order)


@idempotent(AsyncMemoryStore(), key=argument("order"))
async def send(order: str) -> int:
    current_async_claim().extend(timedelta(minutes=1))  # refused
    return len(order)


def label(message: Message[dict[str, str]]) -> int:
    return len(message.payload["order"])


async def label_async(message: Message[dict[str, str]]) -> int:
    return len(message.payload["order"])


async def main(guard: TransactionGuard, inbox: InboxGuard, event: dict[str, Any]) -> None:
    await ship("o-1")  # refused
    sell(1)  # refused
    text: str = sell("o-1")  # refused
    length: int = await send("o-1")
    await send("o-1", 2)  # refused
    consumer = IdempotentConsumer(MemoryStore(), label)
    total: int | None = consumer.process(Message("m-1")).value
    name: str | None = consumer.process(Message("m-1")).value  # refused
    consumer.process(event)  # refused
    consumer.process_batch([event])  # refused
    IdempotentConsumer(AsyncMemoryStore(), label)  # refused
    AsyncIdempotentConsumer(MemoryStore(), label_async)  # refused
    AsyncIdempotentConsumer(AsyncMemoryStore(), label)  # refused
    IdempotentConsumer(MemoryStore(), label, lease=60)  # refused
    inbox.run(event, print)  # refused
    guard.run(event, lambda _: StoredResponse(200, "{}"))  # refused
    StoredResponse(200, event)  # refused
    Backoff(1, timedelta(0), timedelta(0), 1, 1)  # refused
    print(text, length, total, name)
