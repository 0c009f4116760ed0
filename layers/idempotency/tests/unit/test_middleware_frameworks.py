"""C29: what frameworks do with the protocols: background tasks, streams, files, and middleware further out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import flask
import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from grantwire_idempotency import (
    AsgiIdempotencyMiddleware,
    AsyncMemoryStore,
    MemoryStore,
    NoMetrics,
    WsgiIdempotencyMiddleware,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


def options(store: Any, **more: Any) -> dict[str, Any]:
    """Return the arguments of the middleware."""
    return {"store": store, "name": "shop", "caller": lambda _: "ann", "metrics": NoMetrics(), **more}


def post_twice(app: Any, path: str, key: str = "k1") -> list[httpx.Response]:
    """Send the same request twice to an ASGI application."""

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://shop", follow_redirects=True)
        async with client:
            return [await client.post(path, headers={"Idempotency-Key": key}) for _ in range(2)]

    return asyncio.run(send())


def starlette(endpoint: Any, *outer: Any, **more: Any) -> Starlette:
    """Return an application with one route and the middleware, and others around it."""
    inner = Middleware(AsgiIdempotencyMiddleware, **options(AsyncMemoryStore(), **more))
    return Starlette(routes=[Route("/orders", endpoint, methods=["POST"])], middleware=[*outer, inner])


def test_starlette_streams_files_and_background_tasks(tmp_path: Path) -> None:
    """A stream with an end and a file are stored like any other body; a background task runs once."""
    (tmp_path / "receipt").write_bytes(b"\x00receipt")
    runs: list[str] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"part "
        yield b"two"

    responses = {
        "stream": lambda: StreamingResponse(parts(), 201),
        "file": lambda: FileResponse(tmp_path / "receipt"),
        "task": lambda: PlainTextResponse("done", background=BackgroundTask(runs.append, "task")),
    }
    for name, respond in responses.items():

        async def endpoint(_request: Any, name: str = name, respond: Any = respond) -> Any:
            runs.append(name)
            return respond()

        first, repeat = post_twice(starlette(endpoint), "/orders")
        assert (first.status_code, first.content) == (repeat.status_code, repeat.content)
        assert repeat.headers["idempotent-replayed"] == "true"
    assert runs == ["stream", "file", "task", "task"]


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_endless_stream_of_starlette_is_refused(spec_version: str) -> None:
    """It ends, by the error of `send` or by a disconnect, as the version of ASGI says."""
    runs: list[str] = []

    async def count() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0)
        finally:
            runs.append("ended")

    async def endpoint(_request: Any) -> Any:
        return StreamingResponse(count())

    app = starlette(endpoint, max_response_bytes=100)

    async def with_version(scope: Any, receive: Any, send: Any) -> None:
        scope["asgi"]["spec_version"] = spec_version
        await app(scope, receive, send)

    assert [response.status_code for response in post_twice(with_version, "/orders")] == [500, 500]
    assert runs == ["ended"]


def test_middleware_of_starlette_further_out() -> None:
    """It may change the response of each request, wrap the messages, and read the route that the router found."""
    seen: list[Any] = []

    class Outer(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            response = await call_next(request)
            seen.append("endpoint" in request.scope)
            response.headers["X-Outer"] = str(len(seen))
            return response

    async def endpoint(_request: Any) -> Any:
        return PlainTextResponse("done")

    first, repeat = post_twice(starlette(endpoint, Middleware(Outer)), "/orders")
    assert (first.headers["x-outer"], repeat.headers["x-outer"], repeat.text) == ("1", "2", "done")
    assert seen[0] is True


def test_paths_of_a_mounted_application_are_its_own() -> None:
    """The middleware can be inside a mount or around it."""

    async def endpoint(_request: Any) -> Any:
        return PlainTextResponse("done")

    inner = starlette(endpoint, paths=["/orders"])
    outer = Starlette(routes=[Mount("/v1", starlette(endpoint))])
    around = AsgiIdempotencyMiddleware(outer, **options(AsyncMemoryStore(), paths=["/v1/orders"]))
    for app in (Starlette(routes=[Mount("/v1", inner)]), around):
        first, repeat = post_twice(app, "/v1/orders")
        assert (first.status_code, first.text, repeat.text) == (200, "done", "done")
        assert "idempotent-replayed" in repeat.headers


def test_client_that_follows_a_redirect_keeps_its_key() -> None:
    """With 307, Starlette sends it to the path with a slash, and the client sends the same request there."""
    runs: list[str] = []

    async def endpoint(_request: Any) -> Any:
        runs.append("ran")
        return PlainTextResponse("done")

    inner = Middleware(AsgiIdempotencyMiddleware, **options(AsyncMemoryStore()))
    app = Starlette(routes=[Route("/orders/", endpoint, methods=["POST"])], middleware=[inner])
    responses = post_twice(app, "/orders")
    assert [(response.status_code, response.text) for response in responses] == [(200, "done")] * 2
    assert runs == ["ran"]


def test_errors_of_fastapi() -> None:
    """An HTTPException is a response. An error of the code releases the key, and so does the 500 of FastAPI."""
    runs: list[str] = []
    for wrap in (False, True):
        app: Any = FastAPI()

        @app.post("/orders/{number}")  # type: ignore[untyped-decorator]
        def create(number: int) -> None:
            runs.append("ran")
            raise HTTPException(409, "sold out") if number == 1 else ValueError("no")

        if wrap:
            app = AsgiIdempotencyMiddleware(app, **options(AsyncMemoryStore()))
        else:
            app.add_middleware(AsgiIdempotencyMiddleware, **options(AsyncMemoryStore()))
        refused, repeat = post_twice(app, "/orders/1")
        assert (refused.status_code, repeat.status_code, repeat.json()) == (409, 409, {"detail": "sold out"})
        assert [response.status_code for response in post_twice(app, "/orders/0", "k2")] == [500, 500]
        assert runs == ["ran"] * 3
        runs.clear()


def test_flask_streams_and_errors() -> None:
    """The middleware is around `wsgi_app`, so that the application itself stays in reach."""
    app = flask.Flask("shop")
    runs: list[str] = []

    def parts(count: int) -> Iterator[str]:
        try:
            for number in range(count):
                yield f"part {number} "
        finally:
            runs.append("ended")

    @app.post("/orders/<int:count>")
    def create(count: int) -> Any:
        return flask.Response(parts(count))

    app.wsgi_app = WsgiIdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, **options(MemoryStore(), max_response_bytes=100)
    )
    client = app.test_client()
    first, repeat = (client.post("/orders/2", headers={"Idempotency-Key": "k1"}) for _ in range(2))
    assert (first.text, repeat.text) == ("part 0 part 1 ", "part 0 part 1 ")
    assert repeat.headers["Idempotent-Replayed"] == "true"
    refused = [client.post("/orders/1000000", headers={"Idempotency-Key": "k2"}).status_code for _ in range(2)]
    assert refused == [500, 500]
    assert runs == ["ended", "ended"]
