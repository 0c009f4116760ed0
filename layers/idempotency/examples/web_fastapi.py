"""A web handler: the order, its key and its response are committed together.

Serve it: DATABASE_URL=postgresql://… uvicorn web_fastapi:app
Run it with three requests: DATABASE_URL=postgresql://… python web_fastapi.py

    201 {"order_id": 1}
    201 {"order_id": 1} replayed
    422 {"detail":"this Idempotency-Key was used for another request; use a new key"}
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Response
from psycopg import Connection
from psycopg_pool import ConnectionPool

from grantwire_idempotency import RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import BadRequestError, KeyConflictError, RetryableError

pool = ConnectionPool(os.environ["DATABASE_URL"], open=False)
guard = TransactionGuard(pool)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    pool.open()  # in the process that serves requests, not before a fork
    with pool.connection() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id serial, customer text, total int)")
    yield
    pool.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
def create_order(
    order: dict[str, Any], idempotency_key: Annotated[str, Header()], x_user: Annotated[str, Header()]
) -> Response:
    def work(tx: Connection[Any]) -> StoredResponse:
        row = tx.execute(
            "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING id", (x_user, order["total"])
        ).fetchone()
        return StoredResponse(201, json.dumps({"order_id": row[0] if row else None}))

    try:
        # The caller is the authenticated user: take it from your own authentication.
        identity = RequestIdentity.create(x_user, "POST /orders", idempotency_key, order)
        stored = guard.run(identity, work)
    except BadRequestError as error:
        raise HTTPException(400, str(error)) from error
    except KeyConflictError as error:
        raise HTTPException(422, str(error)) from error
    except RetryableError as error:
        raise HTTPException(503, str(error), {"Retry-After": str(error.retry_after)}) from error
    headers = {"Idempotent-Replayed": "true"} if stored.replayed else {}
    return Response(stored.body, stored.status_code, headers, "application/json")


if __name__ == "__main__":
    from fastapi.testclient import TestClient

    with TestClient(app) as client:
        for total in (5, 5, 6):
            response = client.post("/orders", json={"total": total}, headers={"Idempotency-Key": "k1", "X-User": "ann"})
            print(response.status_code, response.text, *["replayed"] * ("Idempotent-Replayed" in response.headers))
