"""Duplicate strategies: which messages about an entity are out of date?

Run it: python duplicate_strategies.py

    by_message_id: m-1 m-2 m-3
    by_version: m-1 m-2
    by_timestamp: m-1 m-2
    by_content_hash: m-1 m-2 m-3 m-1
"""

import json

from grantwire_idempotency import (
    IdempotentConsumer,
    MemoryStore,
    Message,
    by_content_hash,
    by_message_id,
    by_timestamp,
    by_version,
    entity_key,
)

order = entity_key("order", "order_id")

strategies = {
    "by_message_id": by_message_id(),  # the same key is a duplicate; takes any key strategy
    "by_version": by_version(order, "version"),  # the same or an older version is a duplicate
    "by_timestamp": by_timestamp(order, "at"),  # the same or an earlier time is a duplicate
    "by_content_hash": by_content_hash(),  # the same id with another body is new
}


def message(identifier: str, version: int, at: str) -> Message:
    return Message(identifier, body=json.dumps({"order_id": "o-1", "version": version, "at": at}))


messages = [
    message("m-1", 1, "2026-01-08T07:10:00Z"),
    message("m-2", 3, "2026-01-08T07:30:00Z"),
    message("m-3", 2, "2026-01-08T08:20:00+01:00"),  # overtaken by m-2
    message("m-1", 1, "2026-01-08T07:10:01Z"),  # the same id, another body
]

if __name__ == "__main__":
    for name, strategy in strategies.items():
        ran: list[str] = []
        process = lambda message: ran.append(message.id)
        IdempotentConsumer(MemoryStore(), process, identify=strategy, name="orders").process_batch(messages)
        print(f"{name}:", *ran)
