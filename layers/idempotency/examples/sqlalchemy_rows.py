"""SQLAlchemy inside a guard: its session works on the connection of the guard, so both commit together.

Run it: DATABASE_URL=postgresql://… python sqlalchemy_rows.py

    True False
    1
"""

# shown from here
import json
import os
from typing import Any

from psycopg import Connection
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from grantwire_idempotency import InboxGuard, Message

guard = InboxGuard(os.environ["DATABASE_URL"], name="stock")


def session_of(connection: Connection[Any]) -> Session:
    """Return a session whose statements run in the transaction of the guard; it flushes and never commits."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=StaticPool)
    engine.dialect.do_commit = engine.dialect.do_rollback = lambda _: None  # type: ignore[assignment, method-assign]
    return Session(engine, join_transaction_mode="rollback_only")


def handle(message: Message) -> bool:
    """Return whether the message was new."""

    def work(connection: Connection[Any]) -> None:
        session = session_of(connection)
        session.execute(text("INSERT INTO stock (item) VALUES (:item)"), message.payload)
        session.flush()

    return not guard.run(message, work).replayed


# shown to here


if __name__ == "__main__":
    setup = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
    with setup.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS stock (item text)"))
    message = Message("m-1", body=json.dumps({"item": "pen"}))
    print(handle(message), handle(message))
    with setup.begin() as connection:
        print(connection.execute(text("SELECT count(*) FROM stock")).scalar_one())
    setup.dispose()
    guard.close()
