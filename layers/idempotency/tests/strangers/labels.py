"""Print a label for each message of a queue: retries, versions, dead letters, partial batches."""

import json
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from grantwire_idempotency import (
    Backoff,
    IdempotentConsumer,
    MemoryStore,
    Message,
    Outcome,
    RetryPolicy,
    by_version,
    entity_key,
)
from grantwire_idempotency.errors import GrantwireError, RejectedError

dead: list[tuple[str, str | bytes]] = []


class Order(TypedDict):
    order: str
    version: int


def print_label(message: Message[Order]) -> str:
    order = message.payload["order"]
    if order == "bad":
        raise RejectedError("no such order")
    return f"label {order}"


def bury(message: Message[Order], error: Exception) -> None:
    dead.append((f"{message.id}: {error}", message.body))


consumer = IdempotentConsumer(
    MemoryStore(capacity=100),
    print_label,
    name="labels",
    identify=by_version(entity_key("order", "order")),
    retry=RetryPolicy(
        max_attempts=2,
        backoff=Backoff(
            base=timedelta(milliseconds=1),
            cap=timedelta(milliseconds=2),
            floor=timedelta(0),
            jitter_min=1.0,
            jitter_max=1.0,
        ),
    ),
    dead_letter=bury,
    order_ttl=timedelta(days=7),
)


def handler(event: dict[str, Any], context: object) -> Any:
    return consumer.handle(event, context)


def main() -> None:
    messages: list[Message[Order]] = [
        Message("m-1", body=json.dumps({"order": "o-1", "version": 2})),
        Message("m-2", body=json.dumps({"order": "o-1", "version": 1})),
        Message("m-3", body=json.dumps({"order": "bad", "version": 1})),
    ]
    for message in messages:
        try:
            outcome = consumer.process(message)
        except GrantwireError as error:
            print(type(error).__name__)
        else:
            assert_type(outcome, Outcome[str])
            print(outcome.value, outcome.replayed)
    parcels = IdempotentConsumer(MemoryStore(), str, name="parcels", items=lambda _: [("1", {}), ("2", {})])
    assert_type(parcels.process(Message("p-1")).value, list[Any] | None)
    print(parcels.process_batch([Message("p-1"), Message("p-2", body=b"\x00")]), dead)


if __name__ == "__main__":
    main()
