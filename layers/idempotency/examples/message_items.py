"""One message with items: after a failure, only the items that are not done run again.

Run it: python message_items.py

    m-1:1 pen
    ink is sold out
    m-1:2 ink
    m-1:3 paper
"""

# shown from here
import json
import logging

from grantwire_idempotency import IdempotentConsumer, MemoryStore, Message
from grantwire_idempotency.errors import RejectedError

stock = {"pen", "paper"}


def pack(item: Message) -> None:
    sku = item.payload["sku"]
    if sku not in stock:
        raise RejectedError(f"{sku} is sold out")
    print(item.id, sku)


consumer = IdempotentConsumer(
    MemoryStore(),
    pack,
    name="parcels",
    items=lambda message: [(line["id"], line) for line in message.payload["lines"]],
)


# shown to here


if __name__ == "__main__":
    logging.getLogger("grantwire_idempotency").setLevel(logging.CRITICAL)  # in production, keep the log
    lines = [{"id": "1", "sku": "pen"}, {"id": "2", "sku": "ink"}, {"id": "3", "sku": "paper"}]
    message = Message("m-1", body=json.dumps({"lines": lines}))
    try:
        consumer.process(message)
    except RejectedError as error:
        print(error)
    stock.add("ink")
    consumer.process(message)  # the queue delivers it again
