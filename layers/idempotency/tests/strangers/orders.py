"""Take an order from an HTTP request: the row, its key and its response in one transaction."""

import json
import os
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from grantwire_idempotency import GuardSettings, RequestIdentity, StoredResponse, TransactionGuard
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


def main() -> None:
    with ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        with pool.connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS stranger_orders (id serial, customer text, total int)")
        guard = TransactionGuard(pool, GuardSettings())
        for total in (5, 5, 6):
            reply = take_order(guard, "ann", "k-1", {"total": total})
            print(reply.status, *reply.headers)


if __name__ == "__main__":
    main()
