"""Serves an application behind the middleware on a free port of 127.0.0.1, and prints the port.

Arguments: asgi or wsgi, the addresses of PostgreSQL and of Redis, and a folder. The first part of a path names the
store. Below it, `work` adds a line to the file `effects` and responds with it; `wait` responds when the file `go`
exists. An ASGI application that waits gives up if it is told that its client left, as some frameworks do.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import uvicorn

from grantwire_idempotency import (
    AsgiIdempotencyMiddleware,
    AsyncPostgresStore,
    AsyncRedisStore,
    FailMode,
    PostgresStore,
    RedisStore,
    WsgiIdempotencyMiddleware,
    connect_redis,
    connect_redis_async,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
# Servers that refuse connections.
POSTGRES_DOWN, REDIS_DOWN = "postgresql://127.0.0.1:1/down", "redis://127.0.0.1:1/0"
# Longer than a test.
OPTIONS: Any = {"name": "orders", "lease": timedelta(hours=1)}
HEADERS = [("Content-Type", "application/json"), ("Location", "/orders/1"), ("Set-Cookie", "session=1")]


class Work:
    """The work of a request: one line in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> bytes:
        """Add the line and return the response's body."""
        run = f"{os.getpid()} {uuid.uuid4().hex}"
        with (self._folder / "effects").open("a") as effects:
            effects.write(f"{run}\n")
        return json.dumps({"run": run}).encode()

    def may_end(self) -> bool:
        """Return whether work that waits may end."""
        return (self._folder / "go").exists()


def create_asgi(work: Work, postgres: str, redis: str) -> Any:
    """Return the ASGI application behind one middleware for each store."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        body = work.start()
        if scope["path"].endswith("/wait"):
            left = asyncio.ensure_future(receive())
            while not work.may_end():
                await asyncio.sleep(0.005)
                if left.done():
                    raise RuntimeError("the client left")
            left.cancel()
        headers = [(name.encode(), value.encode()) for name, value in HEADERS]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def caller(scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-user"], "latin-1")

    guarded: Any = app
    for name, store, mode in (
        ("postgres", AsyncPostgresStore(postgres), FailMode.CLOSED),
        ("redis", AsyncRedisStore(connect_redis_async(redis)), FailMode.CLOSED),
        ("closed", AsyncPostgresStore(POSTGRES_DOWN), FailMode.CLOSED),
        ("open", AsyncRedisStore(connect_redis_async(REDIS_DOWN)), FailMode.OPEN),
    ):
        guarded = AsgiIdempotencyMiddleware(
            guarded, store, caller=caller, fail_mode=mode, paths=[f"/{name}"], **OPTIONS
        )
    return guarded


def create_wsgi(work: Work, postgres: str, redis: str) -> Any:
    """Return the WSGI application behind one middleware for each store."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        body = work.start()
        while environ["PATH_INFO"].endswith("/wait") and not work.may_end():
            time.sleep(0.005)
        start_response("201 Created", HEADERS)
        return [body]

    def caller(environ: Any) -> str:
        return str(environ["HTTP_X_USER"])

    guarded: Any = app
    for name, store, mode in (
        ("postgres", PostgresStore(postgres), FailMode.CLOSED),
        ("redis", RedisStore(connect_redis(redis)), FailMode.CLOSED),
        ("closed", PostgresStore(POSTGRES_DOWN), FailMode.CLOSED),
        ("open", RedisStore(connect_redis(REDIS_DOWN)), FailMode.OPEN),
    ):
        guarded = WsgiIdempotencyMiddleware(
            guarded, store, caller=caller, fail_mode=mode, paths=[f"/{name}"], **OPTIONS
        )
    return guarded


def serve_asgi(app: Any, announce: Callable[[int], None]) -> None:
    """Serve with uvicorn."""
    with socket.create_server((HOST, 0)) as listener:
        announce(listener.getsockname()[1])
        uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error")).run(sockets=[listener])


def serve_wsgi(app: Any, announce: Callable[[int], None]) -> None:
    """Serve with the server of the standard library, with a thread for each request."""

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        request_queue_size = 200

    class Handler(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = Server((HOST, 0), Handler)
    server.set_app(app)
    announce(server.server_port)
    server.serve_forever()


def main(protocol: str, postgres: str, redis: str, folder: str) -> None:
    """Serve until the process is killed."""
    create, serve = (create_asgi, serve_asgi) if protocol == "asgi" else (create_wsgi, serve_wsgi)
    serve(create(Work(Path(folder)), postgres, redis), lambda port: print(port, flush=True))  # noqa: T201 - the report


if __name__ == "__main__":
    main(*sys.argv[1:])
