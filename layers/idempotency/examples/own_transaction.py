"""Keys in a transaction of your own, on psycopg: a batch of messages, and a request with its response.

Run it: DATABASE_URL=postgresql://… python own_transaction.py

    2 of 3 messages were new
    201 {"order_id": 7}
    201 {"order_id": 7} replayed
"""

# shown from here
import json
import os
from typing import Any

import psycopg

from grantwire_idempotency import InboxGuard, Message, RequestIdentity, StoredResponse, TransactionGuard

inbox = InboxGuard(name="payments")  # no database: it works in your transactions
guard = TransactionGuard()


def handle_batch(connection: psycopg.Connection[Any], messages: list[Message]) -> int:
    """Write the rows of the new messages, and return how many they were."""
    with connection.transaction():
        new = [message for message in messages if inbox.record(connection, message)]
        for message in new:
            connection.execute("INSERT INTO payments (amount) VALUES (%(amount)s)", message.payload)
    return len(new)


def create_order(connection: psycopg.Connection[Any], user: str, key: str, order: dict[str, Any]) -> StoredResponse:
    identity = RequestIdentity.create(user, "POST /payments", key, order)
    with connection.transaction():
        stored = guard.begin(connection, identity)
        if stored is not None:
            return stored
        connection.execute("INSERT INTO payments (amount) VALUES (%(total)s)", order)
        response = StoredResponse(201, json.dumps({"order_id": order["id"]}))
        guard.finish(connection, identity, response)  # without it, the COMMIT fails
        return response


# shown to here


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS payments (amount int)")
        batch = [Message(name, body=json.dumps({"amount": 5})) for name in ("m-1", "m-2", "m-1")]
        print(f"{handle_batch(connection, batch)} of {len(batch)} messages were new")
        for _ in range(2):
            response = create_order(connection, "ann", "k-7", {"id": 7, "total": 5})
            print(response.status_code, response.body, *["replayed"] * response.replayed)
