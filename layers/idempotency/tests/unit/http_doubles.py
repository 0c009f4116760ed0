"""An application in ASGI and in WSGI, and calls of both without a server."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from grantwire_idempotency import (
    AsgiIdempotencyMiddleware,
    AsyncMemoryStore,
    MemoryStore,
    NoMetrics,
    WsgiIdempotencyMiddleware,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Response:
    """A response of the middleware; names of headers are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Call:
    """A request as an application sees it."""

    method: str
    path: str
    body: bytes


@dataclass
class Application:
    """Records its calls and responds with the next of `answers`, the last one again and again."""

    answers: list[Answer | Exception] = field(
        default_factory=lambda: [(201, {"Content-Type": "application/json", "Set-Cookie": "s=1"}, b'{"order": 1}')]
    )
    calls: list[Call] = field(default_factory=list)
    during: Callable[[], None] = field(default=lambda: None)

    def answer(self, call: Call) -> Answer:
        """Record the call and return the answer."""
        self.calls.append(call)
        self.during()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond in three messages."""
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        status, headers, content = self.answer(Call(scope["method"], scope["path"], body))
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content[:3], "more_body": True})
        await send({"type": "http.response.body", "body": content[3:]})

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        """Respond in two parts; the validator of the standard library checks that the protocol is followed."""
        length = environ.get("CONTENT_LENGTH")
        body = environ["wsgi.input"].read(int(length)) if length else b""
        path = environ["SCRIPT_NAME"] + environ["PATH_INFO"]
        status, headers, content = self.answer(Call(environ["REQUEST_METHOD"], path, body))
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return iter([content[:3], content[3:]])


class AsgiSubject:
    """The middleware for ASGI."""

    middleware = AsgiIdempotencyMiddleware
    store = AsyncMemoryStore

    def __init__(self, app: Application, **options: Any) -> None:
        options = {"caller": lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode(), **options}
        options = {"store": self.store(), "name": "shop", "metrics": NoMetrics(), **options}
        self._app = self.middleware(app.asgi, **options)

    def send(  # noqa: PLR0913 - the parts of a request
        self,
        body: bytes = b'{"total": 5}',
        *,
        key: str | None = "k1",
        user: str = "ann",
        method: str = "POST",
        path: str = "/orders",
        query: str = "",
        root: str = "",
        content_type: str = "application/json",
    ) -> Response:
        """Send a request in two parts and return the response."""
        headers = {"x-user": user, "content-length": str(len(body)), "content-type": content_type}
        headers |= {} if key is None else {"idempotency-key": key}
        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        return asyncio.run(call_asgi(self._app, scope, body))


class WsgiSubject:
    """The middleware for WSGI, between two validators of the standard library."""

    middleware = WsgiIdempotencyMiddleware
    store = MemoryStore

    def __init__(self, app: Application, **options: Any) -> None:
        options = {"caller": lambda environ: environ.get("HTTP_X_USER"), **options}
        options = {"store": self.store(), "name": "shop", "metrics": NoMetrics(), **options}
        self._app = validator(self.middleware(validator(app.wsgi), **options))

    def send(  # noqa: PLR0913 - as above
        self,
        body: bytes = b'{"total": 5}',
        *,
        key: str | None = "k1",
        user: str = "ann",
        method: str = "POST",
        path: str = "/orders",
        query: str = "",
        root: str = "",
        content_type: str = "application/json",
    ) -> Response:
        """Send a request and return the response."""
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": root, "PATH_INFO": path}
        environ |= {
            "QUERY_STRING": query,
            "CONTENT_TYPE": content_type,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        environ |= ({"HTTP_X_USER": user} if user else {}) | ({} if key is None else {"HTTP_IDEMPOTENCY_KEY": key})
        return call_wsgi(self._app, environ)


async def call_asgi(app: Any, scope: dict[str, Any], body: bytes = b"") -> Response:
    """Call an ASGI application with a body in two parts; then the client waits."""
    parts = [
        {"type": "http.request", "body": body[:2], "more_body": True},
        {"type": "http.request", "body": body[2:], "more_body": False},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *bodies = sent
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Response(start["status"], headers, b"".join(message.get("body", b"") for message in bodies))


def call_wsgi(app: Any, environ: dict[str, Any]) -> Response:
    """Call a WSGI application."""
    setup_testing_defaults(environ)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        started[:] = [status, headers, exc_info]

    result = app(environ, start_response)
    try:
        body = b"".join(result)
    finally:
        if hasattr(result, "close"):
            result.close()
    status, headers, _ = started
    return Response(int(status.split()[0]), {name.lower(): value for name, value in headers}, body)
