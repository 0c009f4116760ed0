"""The middleware for WSGI."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.steps import drive
from grantwire_idempotency._internal.foundation.wiring import sync_store_rule
from grantwire_idempotency._internal.middleware.base import Middleware
from grantwire_idempotency._internal.middleware.collector import ResponseCollector
from grantwire_idempotency._internal.middleware.messages import HttpRequest
from grantwire_idempotency._internal.middleware.problems import RequestRefusedError
from grantwire_idempotency._internal.stores.interface import Store
from grantwire_idempotency.errors import BadRequestError, InternalError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.middleware.messages import HttpResponse

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApplication = Callable[[Environ, StartResponse], Iterable[bytes]]
FindCaller = Callable[[Environ], str | None]


class WsgiIdempotencyMiddleware(Middleware[WsgiApplication, Store, FindCaller]):
    """Runs each request of a WSGI application once for its caller and its header `Idempotency-Key`.

    The parameters are those of `AsgiIdempotencyMiddleware`. The store is a synchronous one, and `caller` is a plain
    function that is called with the environ. Raises ConfigError with every invalid argument.
    """

    _store_rule = staticmethod(sync_store_rule)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request."""
        path = _decode(environ.get("PATH_INFO", ""))
        if not self._guard.covers(environ["REQUEST_METHOD"], path or "/"):
            return self._app(environ, start_response)
        try:
            request = self._read(environ, path)
        except (BadRequestError, RequestRefusedError) as error:
            return _send(self._guard.refuse(error), start_response)
        if request is None:
            return self._app(environ, start_response)
        exchange = _Exchange(self._app, environ, request.body, self._max_response_bytes)
        try:
            response = drive(self._guard.run(request, exchange.respond))
        finally:
            exchange.close()
        return _send(response, start_response)

    def _read(self, environ: Environ, path: str) -> HttpRequest | None:
        """Return the request, or None if it has no key and may run without."""
        header = environ.get("HTTP_IDEMPOTENCY_KEY")
        key = self._guard.read_key([] if header is None else [header])
        if key is None:
            return None
        return HttpRequest(
            self._guard.read_caller(self._find_caller(environ)),
            key,
            environ["REQUEST_METHOD"],
            _decode(environ.get("SCRIPT_NAME", "")) + path,
            environ.get("QUERY_STRING", ""),
            environ.get("CONTENT_TYPE", ""),
            self._read_body(environ),
        )

    def _read_body(self, environ: Environ) -> bytes:
        """Read the body. Without a length, there is one only if the server marks its end."""
        source, header = environ["wsgi.input"], environ.get("CONTENT_LENGTH")
        if header:
            if not (header.isascii() and header.isdigit()):
                raise BadRequestError("Content-Length must be a number")
            self._guard.limit_body(int(header))
            body: bytes = source.read(int(header))
            if len(body) < int(header):
                raise BadRequestError("the body of the request is incomplete")
            return body
        if not environ.get("wsgi.input_terminated"):
            return b""
        body = source.read(self._guard.max_request_bytes + 1)
        self._guard.limit_body(len(body))
        return body


class _Exchange:
    """One run of the application: it gets the body that was read, and its response is collected."""

    def __init__(self, app: WsgiApplication, environ: Environ, body: bytes, max_response_bytes: int) -> None:
        self._app = app
        self._environ = environ
        self._body = body
        self._collector = ResponseCollector(max_response_bytes)
        self._result: Iterable[bytes] = ()

    def respond(self) -> HttpResponse:
        """Call the application and return its response."""
        self._environ.update({"wsgi.input": io.BytesIO(self._body), "CONTENT_LENGTH": str(len(self._body))})
        self._result = self._app(self._environ, self._start)
        for chunk in self._result:
            self._collector.add(chunk)
        return self._collector.finish()

    def close(self) -> None:
        """End the application's part, as a server does when it has sent the response."""
        close = getattr(self._result, "close", None)
        if close is not None:
            close()

    def _start(self, status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> Callable[[bytes], None]:
        """Keep status and headers; nothing is sent yet, so an application can replace them after an error."""
        code, _, reason = status.partition(" ")
        if not code.isdigit():
            raise InternalError(f"the application set the status {status!r:.60}, which has no number")
        self._collector.start(int(code), tuple(headers), reason)
        return self._collector.add


def _send(response: HttpResponse, start_response: StartResponse) -> Iterable[bytes]:
    start_response(f"{response.status} {response.reason or _find_reason(response.status)}", list(response.headers))
    return [response.body]


def _find_reason(status: int) -> str:
    """Return the reason phrase, which a stored response does not have."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _decode(text: str) -> str:
    """Return a part of the path, whose bytes WSGI passes as Latin-1."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")
