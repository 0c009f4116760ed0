"""Key strategies: which messages are the same message?

Run it: python key_strategies.py

    message_id: m-1 m-2 m-3
    business_key: m-1 m-3
    request_id: m-1 m-3
    entity_key: m-1
    payload_hash: m-1 m-3
"""

import json

from grantwire_idempotency import (
    IdempotentConsumer,
    MemoryStore,
    Message,
    business_key,
    entity_key,
    message_id,
    payload_hash,
    request_id,
)

strategies = {
    "message_id": message_id,  # the id that the queue gave; the default of consumers
    "business_key": business_key("order.created", "order_id", "total"),  # SHA-256 of these fields
    "request_id": request_id("request_id"),  # an attribute; without it, the message id is the key
    "entity_key": entity_key("order", "order_id"),  # "order:o-1"
    "payload_hash": payload_hash("order"),  # key order and white space of the JSON do not matter
}

messages = [
    Message("m-1", body='{"order_id": "o-1", "total": 5}', attributes={"request_id": "r-1"}),
    Message("m-2", body='{"total": 5, "order_id": "o-1"}', attributes={"request_id": "r-1"}),  # sent again
    Message("m-3", body=json.dumps({"order_id": "o-1", "total": 7})),  # another total
]

if __name__ == "__main__":
    for name, strategy in strategies.items():
        ran: list[str] = []
        process = lambda message: ran.append(message.id)
        IdempotentConsumer(MemoryStore(), process, identify=strategy, name="orders").process_batch(messages)
        print(f"{name}:", *ran)
