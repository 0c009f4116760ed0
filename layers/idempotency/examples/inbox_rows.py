"""A consumer whose effect is rows: each message writes them once, and an older version never overwrites a newer one.

Run it: DATABASE_URL=postgresql://… python inbox_rows.py

    version 1: written
    version 3: written
    version 2: skipped
    version 3: skipped
    [('o-1', 3)]
"""

# shown from here
import json
import os
from typing import Any

import psycopg
from psycopg import Connection

from grantwire_idempotency import InboxGuard, Message, by_version, entity_key

guard = InboxGuard(
    os.environ["DATABASE_URL"], name="order-status", identify=by_version(entity_key("order", "order_id"), "version")
)


def handle(message: Message) -> bool:
    """Return whether the message was new."""

    def work(connection: Connection[Any]) -> None:
        connection.execute(
            """INSERT INTO order_status (order_id, version) VALUES (%(order_id)s, %(version)s)
               ON CONFLICT (order_id) DO UPDATE SET version = excluded.version""",
            message.payload,
        )

    return not guard.run(message, work).replayed


# shown to here


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS order_status (order_id text PRIMARY KEY, version int)")
        for number, version in enumerate((1, 3, 2, 3)):
            message = Message(f"m-{number}", body=json.dumps({"order_id": "o-1", "version": version}))
            print(f"version {version}: {'written' if handle(message) else 'skipped'}")
        print(connection.execute("SELECT order_id, version FROM order_status").fetchall())
    guard.close()
