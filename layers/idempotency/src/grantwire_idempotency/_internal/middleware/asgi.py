"""The middleware for ASGI."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.steps import drive_async
from grantwire_idempotency._internal.foundation.wiring import async_store_rule
from grantwire_idempotency._internal.middleware.asgi_exchange import ClientGoneError, Exchange, read_body, send_response
from grantwire_idempotency._internal.middleware.base import Middleware
from grantwire_idempotency._internal.middleware.messages import HttpRequest
from grantwire_idempotency._internal.middleware.problems import RequestRefusedError
from grantwire_idempotency._internal.stores.interface import AsyncStore
from grantwire_idempotency.errors import BadRequestError

if TYPE_CHECKING:
    from grantwire_idempotency._internal.middleware.messages import HttpResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]
FindCaller = Callable[[Scope], str | Awaitable[str | None] | None]


class AsgiIdempotencyMiddleware(Middleware[AsgiApplication, AsyncStore, FindCaller]):
    """Runs each request of an ASGI application once for its caller and its header `Idempotency-Key`.

    A repeat within `ttl` gets the stored response with `Idempotent-Replayed: true`. The same key with another method,
    path, query or body gets 422, and a repeat while the first request runs 409 with `Retry-After`. Requests with other
    methods or paths pass through; without `required`, so do requests without a key.

    `caller` is called with the scope and returns the authenticated user or client, who never shares a key with another
    one. It can be a coroutine function. For None or "", the request gets 403. `name` is part of every key: two
    applications with the same store have two names.

    Responses with one of the `stored_statuses` are stored, with body, type, location and the `stored_headers`. After
    any other response, and if the application raises, the key is released, and a repeat runs. Responses that are a
    stream or too large cannot be guarded: the request gets 500, and so does every repeat, because its work is done.

    If the client disconnects, or the task is cancelled from outside, the work ends and its response is stored. If the
    process dies, the key is free after `lease`, which must exceed the longest request. If the store is unavailable,
    CLOSED, the default, responds 503 with `Retry-After`, and OPEN runs the request unguarded.

    The store must be an asynchronous one. Raises ConfigError with every invalid argument.
    """

    _store_rule = staticmethod(async_store_rule)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request; pass everything else to the application."""
        if scope["type"] != "http" or not self._guard.covers(scope["method"], _split_path(scope)[1]):
            await self._app(scope, receive, send)
            return
        try:
            request = await self._read(scope, receive)
        except ClientGoneError:
            return
        except (BadRequestError, RequestRefusedError) as error:
            await send_response(send, self._guard.refuse(error))
            return
        if request is None:
            await self._app(scope, receive, send)
            return
        exchange = Exchange(partial(self._app, _without_shortcuts(scope)), request.body, self._max_response_bytes)
        await send_response(send, await self._run(request, exchange))
        await exchange.finish()

    async def _read(self, scope: Scope, receive: Receive) -> HttpRequest | None:
        """Return the request, or None if it has no key and may run without."""
        key = self._guard.read_key(_list_values(scope, b"idempotency-key"))
        if key is None:
            return None
        found = self._find_caller(scope)
        caller = self._guard.read_caller(await found if inspect.isawaitable(found) else found)
        length = "".join(_list_values(scope, b"content-length")[:1])
        if length.isdigit():
            self._guard.limit_body(int(length))
        body = await read_body(receive, self._guard.limit_body)
        return HttpRequest(
            caller,
            key,
            scope["method"],
            "".join(_split_path(scope)),
            scope.get("query_string", b"").decode("latin-1"),
            "".join(_list_values(scope, b"content-type")[:1]),
            body,
        )

    async def _run(self, request: HttpRequest, exchange: Exchange) -> HttpResponse:
        """Run the request in a task of its own, which goes on if this one is cancelled."""
        run = exchange.keep(asyncio.create_task(drive_async(self._guard.run(request, exchange.respond))))
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            if not run.done():
                run.add_done_callback(partial(self._log_abandoned, request))
            raise

    def _log_abandoned(self, request: HttpRequest, run: asyncio.Task[HttpResponse]) -> None:
        logger = self._logger
        error = None if run.cancelled() else run.exception()
        if error is not None:
            fields = {"method": request.method, "path": request.path}
            logger.error("request failed after its client left", exc_info=error, extra=fields)


def _split_path(scope: Scope) -> tuple[str, str]:
    """Return where the application is mounted, and the path below it. Some servers and frameworks pass both as one."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if root and f"{path}/".startswith(f"{root}/"):
        path = path[len(root) :]
    return root, path or "/"


def _list_values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in scope["headers"] if header.lower() == name]


def _without_shortcuts(scope: Scope) -> Scope:
    """Return a scope in which no server offers to send files or trailers itself, because they could not be stored.

    Without such an offer it is the same scope: frameworks leave the route in it for middleware further out.
    """
    extensions = scope.get("extensions") or {}
    kept = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
    return scope if len(kept) == len(extensions) else {**scope, "extensions": kept}
