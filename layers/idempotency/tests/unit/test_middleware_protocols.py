"""C29: what only ASGI has, and only WSGI."""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

import pytest

from grantwire_idempotency import (
    AsgiIdempotencyMiddleware,
    AsyncMemoryStore,
    MemoryStore,
    NoMetrics,
    WsgiIdempotencyMiddleware,
    current_async_claim,
)
from grantwire_idempotency.errors import ConfigError, InternalError
from layers.idempotency.tests.unit.doubles import logged
from layers.idempotency.tests.unit.http_doubles import call_asgi, call_wsgi

if TYPE_CHECKING:
    from datetime import timedelta

    from grantwire_idempotency import Claim

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k1")],
}
START = {"type": "http.response.start", "status": 201, "headers": []}
END = {"type": "http.response.body", "body": b"done"}


def guard(app: Any, **options: Any) -> AsgiIdempotencyMiddleware:
    """Return the middleware around an ASGI application."""
    defaults: dict[str, Any] = {"store": AsyncMemoryStore(), "name": "shop", "caller": lambda _: "ann"}
    return AsgiIdempotencyMiddleware(app, metrics=NoMetrics(), **defaults | options)


def guard_wsgi(app: Any, **options: Any) -> WsgiIdempotencyMiddleware:
    """Return the middleware around a WSGI application."""
    defaults: dict[str, Any] = {"store": MemoryStore(), "name": "shop", "caller": lambda _: "ann"}
    return WsgiIdempotencyMiddleware(app, metrics=NoMetrics(), **defaults | options)


class Client:
    """A client that sends a whole request and can disconnect."""

    def __init__(self, *, more_body: bool = False) -> None:
        self.sent: list[Any] = []
        self.gone, self.responded = asyncio.Event(), asyncio.Event()
        self._messages = [{"type": "http.request", "body": b"", "more_body": more_body}]

    async def receive(self) -> Any:
        """See ASGI."""
        if self._messages:
            return self._messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """See ASGI."""
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.responded.set()


async def let_others_end() -> None:
    """Wait until no other task runs."""
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


def test_other_scopes_pass_through() -> None:
    """Lifespan and WebSocket."""
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        asyncio.run(guard(app)({"type": kind}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


def test_caller_can_be_a_coroutine_function() -> None:
    """For example, one that looks up a session."""

    async def find(scope: Any) -> str:
        await asyncio.sleep(0)
        return str(scope["path"])

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(END)

    assert asyncio.run(call_asgi(guard(app, caller=find), SCOPE)).status == 201


def test_cancelled_request_ends_and_its_response_is_stored() -> None:
    """A middleware further out, or a server, cancels the task if the client disconnects."""
    runs: list[str] = []

    async def main() -> None:
        running, may_end = asyncio.Event(), asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            runs.append(current_async_claim().key)
            running.set()
            await may_end.wait()
            await send(START)
            await send(END)

        app = guard(app)  # type: ignore[assignment]
        client = Client()
        request = asyncio.create_task(app(SCOPE, client.receive, client.send))
        await running.wait()
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        assert request.cancelled()
        assert (await call_asgi(app, SCOPE)).status == 409
        may_end.set()
        await let_others_end()
        repeat = await call_asgi(app, SCOPE)
        assert (repeat.status, repeat.body) == (201, b"done")
        assert client.sent == []

    asyncio.run(main())
    assert len(runs) == 1


def test_error_after_the_client_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else would get it; the key is free."""

    async def main() -> None:
        running, may_end = asyncio.Event(), asyncio.Event()

        async def app(_scope: Any, _receive: Any, _send: Any) -> None:
            running.set()
            await may_end.wait()
            raise ValueError("no")

        guarded = guard(app)
        client = Client()
        request = asyncio.create_task(guarded(SCOPE, client.receive, client.send))
        await running.wait()
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        may_end.set()
        await let_others_end()
        with pytest.raises(ValueError, match="no"):
            await call_asgi(guarded, SCOPE)

    asyncio.run(main())
    (line,) = logged(caplog, "ERROR")
    assert line["message"] == "request failed after its client left"
    assert "ValueError: no" in line["exception"]


def test_end_of_the_event_loop_releases_the_key() -> None:
    """A server that shuts down cancels what is left. A repeat runs, but not before the work has really ended."""
    steps: list[str] = []
    running = asyncio.Event()

    class Watched(AsyncMemoryStore):
        async def store_failure(self, claim: Claim, error: str, ttl: timedelta) -> None:
            steps.append("released")
            await super().store_failure(claim, error, ttl)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if not running.is_set():
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)
                steps.append("ended")
        await send(START)
        await send(END)

    guarded = guard(app, store=Watched())

    async def leave() -> None:
        client = Client()
        request = asyncio.create_task(guarded(SCOPE, client.receive, client.send))
        await running.wait()
        request.cancel()

    asyncio.run(leave())
    assert steps == ["ended", "released"]
    assert asyncio.run(call_asgi(guarded, SCOPE)).status == 201


def test_application_is_not_told_that_the_client_disconnected() -> None:
    """Frameworks end the work then; after the response, it may know."""
    seen: list[str] = []

    async def main() -> None:
        client = Client()

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await receive()
            client.gone.set()
            waiting = asyncio.create_task(receive())
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append("waits" if not waiting.done() else "told")
            await send(START)
            await send(END)
            seen.append((await waiting)["type"])

        await guard(app)(SCOPE, client.receive, client.send)
        assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]

    asyncio.run(main())
    assert seen == ["waits", "http.disconnect"]


def test_body_without_length_is_limited() -> None:
    """A chunked body, while it is read."""

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError

    assert asyncio.run(call_asgi(guard(app, max_request_bytes=5), SCOPE, b"123456")).status == 413


def test_client_that_leaves_before_its_request_arrived_runs_nothing() -> None:
    """The body is incomplete."""

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError

    async def main() -> None:
        client = Client(more_body=True)
        client.gone.set()
        await guard(app)(SCOPE, client.receive, client.send)
        assert client.sent == []

    asyncio.run(main())


def test_response_is_sent_before_background_tasks_end() -> None:
    """Frameworks run them after the response. Their error is raised, and the response remains."""
    runs: list[int] = []

    async def main() -> None:
        client = Client()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            runs.append(1)
            await send(START)
            await send(END)
            await asyncio.wait_for(client.responded.wait(), 30)
            raise ValueError("background")

        guarded = guard(app)
        with pytest.raises(ValueError, match="background"):
            await guarded(SCOPE, client.receive, client.send)
        assert (await call_asgi(guarded, SCOPE)).body == b"done"

    asyncio.run(main())
    assert len(runs) == 1


def test_endless_stream_is_ended() -> None:
    """The application gets the error of a client that is gone, and is cancelled if it ignores it."""
    ends: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"Content-Type", b"text/plain")]})
        try:
            while True:
                try:
                    await send({"type": "http.response.body", "body": b"x", "more_body": True})
                except ConnectionError as error:
                    ends.append(str(error))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    response = asyncio.run(call_asgi(guard(app, max_response_bytes=10), SCOPE))
    assert response.status == 500
    assert ends[0] == "it has more than 10 bytes"
    assert ends[-1] == "cancelled"


def test_incomplete_response_is_an_error() -> None:
    """As servers treat it; the key is free."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send({**END, "more_body": True})

    guarded = guard(app)
    for _ in range(2):
        with pytest.raises(InternalError, match="ended without a complete response"):
            asyncio.run(call_asgi(guarded, SCOPE))


def test_server_sends_no_files_itself() -> None:
    """A file that the server reads could not be stored. Without such an offer, the scope stays the same object."""
    scopes: list[Any] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        scopes.append(scope)
        await send(START)
        await send(END)

    offer = {**SCOPE, "extensions": {"http.response.pathsend": {}, "tls": {}}}
    asyncio.run(call_asgi(guard(app), offer))
    asyncio.run(call_asgi(guard(app), SCOPE))
    assert scopes[0]["extensions"] == {"tls": {}}
    assert scopes[1] is SCOPE


def test_each_protocol_has_its_store() -> None:
    """A synchronous store would block the event loop; a coroutine instead of a claim would pass for one."""
    with pytest.raises(ConfigError, match="coroutines need an asynchronous store"):
        guard(lambda *_: None, store=MemoryStore())
    with pytest.raises(ConfigError, match="the store must not be asynchronous here"):
        guard_wsgi(lambda *_: [], store=AsyncMemoryStore())


def wsgi_environ(**values: Any) -> dict[str, Any]:
    """Return the environ of a request with a key."""
    return {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders", "HTTP_IDEMPOTENCY_KEY": "k1", **values}


def test_wsgi_body_without_length_ends_where_the_server_says() -> None:
    """A chunked body; without the mark of the server, reading could wait for ever."""
    bodies: list[bytes] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        bodies.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [])
        return []

    body = io.BytesIO(b"chunks")
    call_wsgi(guard_wsgi(app), wsgi_environ(**{"wsgi.input": body, "wsgi.input_terminated": True}))
    call_wsgi(guard_wsgi(app), wsgi_environ(**{"wsgi.input": io.BytesIO(b"not ours")}))
    assert bodies == [b"chunks", b""]
    limited = guard_wsgi(app, max_request_bytes=5)
    body.seek(0)
    large = call_wsgi(limited, wsgi_environ(**{"wsgi.input": body, "wsgi.input_terminated": True}))
    assert large.status == 413


@pytest.mark.parametrize("length", ["9", "-1", "x"])
def test_wsgi_body_that_is_incomplete_is_refused(length: str) -> None:
    """The client disconnected, or lies."""
    environ = wsgi_environ(CONTENT_LENGTH=length, **{"wsgi.input": io.BytesIO(b"short")})
    assert call_wsgi(guard_wsgi(lambda *_: []), environ).status == 400


def test_wsgi_application_can_write_and_replace_its_headers() -> None:
    """Two rare parts of the protocol: the callable `write`, and a second start after an error. `close` is called."""
    closed: list[str] = []

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append("closed")

    def app(_environ: Any, start_response: Any) -> Body:
        start_response("200 OK", [("X-A", "1")])
        write = start_response("299 Odd Enough", [("X-B", "2")], (None, None, None))
        write(b"first ")
        return Body([b"second"])

    guarded = guard_wsgi(app)
    statuses: list[str] = []
    body = b"".join(guarded(wsgi_start(), lambda status, *_: statuses.append(status)))
    repeat = b"".join(guarded(wsgi_start(), lambda status, *_: statuses.append(status)))
    assert (body, repeat) == (b"first second", b"first second")
    assert statuses == ["299 Odd Enough", "299 Unknown"]
    assert closed == ["closed"]


def wsgi_start() -> dict[str, Any]:
    """Return a complete environ."""
    environ = wsgi_environ()
    setup_testing_defaults(environ)
    return environ


def test_wsgi_error_while_the_body_is_made_releases_the_key() -> None:
    """An application can be a generator. `close` is called, as a server does."""
    ends: list[str] = []

    def app(_environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        try:
            yield b"part"
            raise StopIteration if ends else ValueError("no")
        finally:
            ends.append("closed")

    guarded = guard_wsgi(app)
    with pytest.raises(ValueError, match="no"):
        call_wsgi(guarded, wsgi_environ())
    with pytest.raises(RuntimeError, match="StopIteration"):
        call_wsgi(guarded, wsgi_environ())
    assert ends == ["closed", "closed"]


def test_wsgi_path_is_decoded() -> None:
    """WSGI passes bytes as Latin-1; prefixes are text."""
    guarded = guard_wsgi(lambda *_: [], paths=["/aufträge"])
    path = "/aufträge".encode().decode("latin-1")
    environ = wsgi_environ(PATH_INFO=path)
    del environ["HTTP_IDEMPOTENCY_KEY"]
    assert call_wsgi(guarded, environ).status == 400
