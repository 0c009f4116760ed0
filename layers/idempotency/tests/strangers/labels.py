"""Print a label for each message of a queue: retries, versions, dead letters, partial batches."""

import json
from datetime import timedelta
from typing import Any

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

dead: list[tuple[str, str]] = []


def print_label(message: Message) -> str:
    order: Any = message.payload["order"]
    if order == "bad":
        raise RejectedError("no such order")
    return f"label {order}"


def bury(message: Message, error: Exception) -> None:
    dead.append((message.id, str(error)))


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
    messages = [
        Message("m-1", body=json.dumps({"order": "o-1", "version": 2})),
        Message("m-2", body=json.dumps({"order": "o-1", "version": 1})),
        Message("m-3", body=json.dumps({"order": "bad", "version": 1})),
    ]
    for message in messages:
        try:
            outcome: Outcome = consumer.process(message)
        except GrantwireError as error:
            print(type(error).__name__)
        else:
            print(outcome.value, outcome.replayed)
    print(dead)


if __name__ == "__main__":
    main()
