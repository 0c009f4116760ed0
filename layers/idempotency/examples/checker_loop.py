"""The checker: four methods, for code with its own control flow.

Run it: DATABASE_URL=postgresql://… python checker_loop.py

    processing m-1
    processing m-2
    True True False
"""

# shown from here
import os
from datetime import timedelta

from grantwire_idempotency import IdempotencyChecker, PostgresStore

checker = IdempotencyChecker(PostgresStore(os.environ["DATABASE_URL"]))


def consume(message_id: str) -> None:
    if not checker.mark_processing(message_id, timedelta(minutes=5)):
        return  # it is done
    try:
        print(f"processing {message_id}")
    except Exception as error:
        checker.mark_failed(message_id, error)  # a retry runs at once
        raise
    checker.mark_completed(message_id)


# shown to here


if __name__ == "__main__":
    for name in ("m-1", "m-2", "m-1"):
        consume(name)
    print(*(checker.is_processed(name) for name in ("m-1", "m-2", "m-3")))
