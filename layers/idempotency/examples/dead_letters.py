"""A consumer with retries and dead letters.

Run it: DATABASE_URL=postgresql://… python dead_letters.py

    label for o-1
    o-2, attempt 1
    o-2, attempt 2
    dead letter o-2: the printer is jammed
    dead letter o-3: no such format
    {'batchItemFailures': []}
    the same batch again
    {'batchItemFailures': []}
    redrive of o-2
    label for o-2
"""

# shown from here
import json
import logging
import os
from collections import Counter
from datetime import timedelta

from grantwire_idempotency import Backoff, IdempotentConsumer, Message, PostgresStore, RetryPolicy
from grantwire_idempotency.errors import RejectedError

attempts: Counter[str] = Counter()


def process(message: Message) -> None:
    order = message.payload["order"]
    attempts[order] += 1
    if order == "o-3":
        raise RejectedError("no such format")  # permanent: not retried
    if order == "o-2" and attempts[order] <= 2:
        print(f"o-2, attempt {attempts[order]}")
        raise OSError("the printer is jammed")  # any other error is retried
    print(f"label for {order}")


def save_dead_letter(message: Message, error: Exception) -> None:
    print(f"dead letter {message.id}: {error}")  # in production: a table, a queue, a ticket


consumer = IdempotentConsumer(
    PostgresStore(os.environ["DATABASE_URL"]),
    process,
    name="labels-with-dead-letters",
    # The default: 3 attempts, after 1 s and 2 s, with jitter.
    retry=RetryPolicy(max_attempts=2, backoff=Backoff(timedelta(0), timedelta(0), timedelta(0), 1, 1)),
    dead_letter=save_dead_letter,
)


# shown to here


if __name__ == "__main__":
    logging.getLogger("grantwire_idempotency").setLevel(logging.CRITICAL)  # in production, keep the log
    records = [{"messageId": name, "body": json.dumps({"order": name})} for name in ("o-1", "o-2", "o-3")]
    print(consumer.handle({"Records": records}))
    print("the same batch again")
    print(consumer.handle({"Records": records}))
    print("redrive of o-2")
    consumer.process(Message("o-2", body=json.dumps({"order": "o-2"})), redrive=True)
