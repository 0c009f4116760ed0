"""One run of an ASGI application: it gets the body that was read, and its response is collected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.middleware.collector import ResponseCollector, UnstorableResponseError
from grantwire_idempotency.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from grantwire_idempotency._internal.middleware.messages import HttpResponse

    AsgiMessage = MutableMapping[str, Any]

# An event loop keeps no task alive by itself.
_TASKS: set[asyncio.Task[Any]] = set()


class ClientGoneError(Exception):
    """The client disconnected before the whole request had arrived."""


class Exchange:
    """Calls the application in a task, which goes on after its response, for example with background tasks."""

    def __init__(self, app: Callable[[Any, Any], Awaitable[None]], body: bytes, max_response_bytes: int) -> None:
        self._app = app
        self._body: bytes | None = body
        self._collector = ResponseCollector(max_response_bytes)
        self._response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def respond(self) -> HttpResponse:
        """Call the application and return its response, as soon as it is complete."""
        self._task = self.keep(asyncio.create_task(self._call_app()))
        self._task.add_done_callback(self._end)
        try:
            return await self._response
        except asyncio.CancelledError:
            if not self._task.cancelling():  # the end of the event loop has cancelled it too
                self._task.cancel()
            await asyncio.wait([self._task])
            raise

    async def finish(self) -> None:
        """Wait for the application to end. An error after its response is raised; the response remains."""
        if self._task is None:
            return
        if self._response.exception() is None:
            await self._task
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # it got the reason for the refusal from `send`, which is logged

    @staticmethod
    def keep(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Keep a task alive until it has ended."""
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        return task

    async def _call_app(self) -> None:
        await self._app(self._receive, self._send)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Let `respond` raise what ended the application before its response was complete."""
        if self._response.done():
            return
        if task.cancelled():
            self._response.cancel()
            return
        error = task.exception()
        self._response.set_exception(
            InternalError("the application ended without a complete response") if error is None else error
        )

    async def _receive(self) -> AsgiMessage:
        """Return the body, then nothing until there is a response: a disconnect of the client must not end the work."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait([self._response])
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        """Collect the response. If it is refused, raise what a server raises if the client is gone."""
        if not self._response.done():
            try:
                self._collect(message)
            except UnstorableResponseError as error:
                self._response.set_exception(error)
        if self._response.done() and not self._response.cancelled() and self._response.exception() is not None:
            raise ConnectionAbortedError(str(self._response.exception()))

    def _collect(self, message: AsgiMessage) -> None:
        match message["type"]:
            case "http.response.start":
                headers = tuple(
                    (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                    for name, value in message.get("headers", ())
                )
                self._collector.start(message["status"], headers)
            case "http.response.body":
                self._collector.add(message.get("body", b""))
                if not message.get("more_body", False):
                    self._response.set_result(self._collector.finish())
            case other:
                raise InternalError(f"a guarded application cannot send the message {other}")


async def read_body(receive: Callable[[], Awaitable[AsgiMessage]], limit: Callable[[int], None]) -> bytes:
    """Read the body of a request; `limit` raises if it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        limit(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def send_response(send: Callable[[AsgiMessage], Awaitable[None]], response: HttpResponse) -> None:
    """Send a complete response."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
