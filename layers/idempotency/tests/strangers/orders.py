"""Take an order from an HTTP request, and cancel it by a message: rows and keys in one transaction."""

import json
import os
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from grantwire_idempotency import (
    GuardSettings,
    InboxGuard,
    Message,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
)
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, RequestInProgressError, RetryableError


@dataclass
class Reply:
    """A response of the web framework."""

    status: int
    body: str
    headers: dict[str, str]


def take_order(guard: TransactionGuard, user: str, key: str, order: dict[str, Any]) -> Reply:
    def work(connection: Connection[Any]) -> StoredResponse:
        row = connection.execute(
            "INSERT INTO stranger_orders (customer, total) VALUES (%s, %s) RETURNING id", (user, order["total"])
        ).fetchone()
        return StoredResponse(201, json.dumps({"id": None if row is None else row[0]}))

    try:
        stored = guard.run(RequestIdentity.create(user, "POST /orders", key, order), work)
    except KeyConflictError as error:
        return Reply(409, str(error), {})
    except BadRequestError as error:
        return Reply(400, str(error), {})
    except RequestInProgressError as error:
        return Reply(409, str(error), {"Retry-After": str(error.retry_after)})
    except RetryableError as error:
        return Reply(503, str(error), {"Retry-After": str(error.retry_after)})
    return Reply(stored.status_code, stored.body, {"Idempotent-Replayed": "true"} if stored.replayed else {})


def confirm(connection: Connection[Any], guard: TransactionGuard, identity: RequestIdentity) -> StoredResponse:
    with connection.transaction():
        stored = guard.begin(connection, identity)
        if stored is None:
            stored = StoredResponse(204, "")
            guard.finish(connection, identity, stored)
    return stored


def cancel(session: Session, inbox: InboxGuard, message: Message) -> bool:
    with session.begin():
        return inbox.record(session, message)


def main() -> None:
    engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        inbox = InboxGuard(name="cancellations")
        print(cancel(session, inbox, Message("c-1")), cancel(session, inbox, Message("c-1")))
    engine.dispose()
    with ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        with pool.connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS stranger_orders (id serial, customer text, total int)")
        guard = TransactionGuard(pool, GuardSettings())
        for total in (5, 5, 6):
            reply = take_order(guard, "ann", "k-1", {"total": total})
            print(reply.status, *reply.headers)
        with pool.connection() as connection:
            print(confirm(connection, TransactionGuard(), RequestIdentity.create("ann", "PUT /orders", "k-1", {})))


if __name__ == "__main__":
    main()
