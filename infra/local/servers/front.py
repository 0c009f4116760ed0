"""The program that serves the AWS emulator: it refuses requests that neither call the API nor have the access key.

The emulator itself accepts every caller, and every caller can create functions, which run as the user who started
the stack. Every process of the machine can reach a port on 127.0.0.1, and so can every web page in a browser. This
program therefore owns the port and passes on only two kinds of request (G9, ADR 0034):

- with the access key, as a signed request or as the session token of a function: everything
- without it: calls of a deployed API, if `Host` and `Origin` are this address, not that of a web page

It runs in the emulator's own environment, so this module must not import other modules of Grantwire.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import re
import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Message, Receive, Send], Awaitable[None]]

ACCESS_KEY_VARIABLE = "AWS_SESSION_TOKEN"  # the emulator passes it on to functions, and the SDK sends it
MAX_BODY_BYTES = 10 * 1024 * 1024  # API Gateway's own limit
KEEP_ALIVE_SECONDS = 75  # also the limit for the headers of a request
BODY_SECONDS = 30.0  # for the whole body, which a caller could otherwise send byte by byte; API Gateway's limit is 29

# `@connections` is the emulator's interface to WebSocket APIs, not a path of an API.
_API_PATH = re.compile(r"/_aws/execute-api/[A-Za-z0-9]+/[A-Za-z0-9_]+(?:/(?!@connections).*)?", re.DOTALL)
_CREDENTIAL = re.compile(rb"AWS4-HMAC-SHA256 Credential=([^/, ]+)/")
_OWN_PAGES = {b"none", b"same-origin"}  # of Sec-Fetch-Site, which browsers also send where they send no Origin


class Front:
    """The ASGI application in front of the emulator."""

    def __init__(
        self, emulator: Application, *, port: int, access_key: str, body_seconds: float = BODY_SECONDS
    ) -> None:
        self._emulator = emulator
        self._body_seconds = body_seconds
        self._access_key = access_key.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond to it with a refusal."""
        if scope["type"] == "lifespan" or self._has_access_key(scope):
            await self._emulator(scope, receive, send)
        elif scope["type"] != "http" or not _API_PATH.fullmatch(scope["path"]):
            await _refuse(scope, send, 403, "this address needs the access key id in .grantwire/stack.json")
        elif not self._is_from_here(scope):
            await _refuse(scope, send, 403, "requests of other hosts and web pages are refused")
        elif _declared_length(scope) > MAX_BODY_BYTES:
            await _refuse(scope, send, 413, f"the body must have at most {MAX_BODY_BYTES} bytes")
        else:
            await self._emulator(scope, _bounded(receive, self._body_seconds), send)

    def _has_access_key(self, scope: Message) -> bool:
        """Return whether a request has the access key in its signature or as its session token."""
        signed = (found[1] for value in _values(scope, b"authorization") if (found := _CREDENTIAL.match(value)))
        sent = [*signed, *_values(scope, b"x-amz-security-token")]
        return any(hmac.compare_digest(value, self._access_key) for value in sent)

    def _is_from_here(self, scope: Message) -> bool:
        """Return whether a request names this address, and no web page of another address sent it.

        A page whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name as `Host`.
        """
        hosts = list(_values(scope, b"host"))
        return (
            len(hosts) == 1
            and hosts[0].lower() in self._hosts
            and all(origin.lower() in self._origins for origin in _values(scope, b"origin"))
            and all(site in _OWN_PAGES for site in _values(scope, b"sec-fetch-site"))
        )


def _values(scope: Message, name: bytes) -> Iterator[bytes]:
    """Yield every value of a header; ASGI servers pass names in lower case."""
    return (value for header, value in scope.get("headers", ()) if header.lower() == name)


def _declared_length(scope: Message) -> int:
    lengths = [int(value) for value in _values(scope, b"content-length") if value.isdigit()]
    return max(lengths, default=0)


def _bounded(receive: Receive, seconds: float) -> Receive:
    """Return `receive`, which ends the request if its body gets too long, or is not complete after some seconds."""
    received, is_complete = 0, False
    deadline = asyncio.get_running_loop().time() + seconds

    async def receive_bounded() -> Message:
        nonlocal received, is_complete
        try:
            async with asyncio.timeout_at(None if is_complete else deadline):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        return message if received <= MAX_BODY_BYTES else {"type": "http.disconnect"}

    return receive_bounded


async def _refuse(scope: Message, send: Send, status: int, message: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = json.dumps({"code": "FORBIDDEN" if status == 403 else "TOO_LARGE", "message": message}).encode()  # noqa: PLR2004
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve the emulator on GATEWAY_PORT of 127.0.0.1 until SIGTERM or SIGINT."""
    from hypercorn.asyncio import serve  # type: ignore[import-not-found]  # noqa: PLC0415 - not in the tests' environment
    from hypercorn.config import Config  # type: ignore[import-not-found]  # noqa: PLC0415
    from ministack.app import app  # type: ignore[import-not-found]  # noqa: PLC0415

    port = int(os.environ["GATEWAY_PORT"])
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    with contextlib.suppress(ValueError, OSError):  # each connection and each function needs file descriptors
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    asyncio.run(serve(Front(app, port=port, access_key=os.environ[ACCESS_KEY_VARIABLE]), config))


if __name__ == "__main__":
    main()
