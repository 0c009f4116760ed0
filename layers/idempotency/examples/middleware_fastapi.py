"""FastAPI behind the middleware: each order is charged once, however often its request is sent.

Serve it: DATABASE_URL=postgresql://… uvicorn middleware_fastapi:app
Run it with four requests: DATABASE_URL=postgresql://… python middleware_fastapi.py

    charge ann 5
    201 {"total":5}
    201 {"total":5} replayed
    422 This Idempotency-Key was used for another request. Use a new key.
    400 Idempotency-Key is missing; send a new UUID with each new request.
"""

# shown from here
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from psycopg_pool import AsyncConnectionPool

from grantwire_idempotency import AsgiIdempotencyMiddleware, AsyncPostgresStore

pool = AsyncConnectionPool(os.environ["DATABASE_URL"], open=False)
USERS = {"Bearer token-of-ann": "ann"}  # in production: your own authentication


def find_user(scope: Any) -> str | None:
    return USERS.get(Request(scope).headers.get("authorization", ""))


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    await pool.open()
    yield
    await pool.close()


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    AsgiIdempotencyMiddleware, store=AsyncPostgresStore(pool), name="shop", caller=find_user, paths=["/orders"]
)


@app.post("/orders", status_code=201)
async def create_order(request: Request, order: dict[str, int]) -> dict[str, int]:
    print(f"charge {find_user(request.scope)} {order['total']}")
    return {"total": order["total"]}


# shown to here

if __name__ == "__main__":
    from fastapi.testclient import TestClient

    credentials = {"Authorization": "Bearer token-of-ann"}
    with TestClient(app, headers=credentials) as client:
        for total, key in ((5, "k1"), (5, "k1"), (6, "k1"), (7, None)):
            headers = {} if key is None else {"Idempotency-Key": key}
            response = client.post("/orders", json={"total": total}, headers=headers)
            text = response.json().get("detail", response.text)
            print(response.status_code, text, *["replayed"] * ("Idempotent-Replayed" in response.headers))
