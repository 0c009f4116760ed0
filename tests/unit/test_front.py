"""G9: the program in front of the emulator passes on the API, and everything else only with the access key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from infra.local.servers.front import MAX_BODY_BYTES, Front
from tests.support.waiting import WAIT_SECONDS

PORT = 4566
KEY = "0123456789abcdef0123456789abcdef"
API = "/_aws/execute-api/grantwire/local/v1/entitlements/grants"
OWN_HOST = {"host": f"127.0.0.1:{PORT}"}
SIGNED = {"authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/lambda/aws4_request, Signature=0"}

Message = dict[str, Any]


def send(
    path: str, headers: dict[str, str], *, kind: str = "http", chunks: tuple[bytes, ...] = (b"",)
) -> tuple[int | None, int | None]:
    """Return the status of a refusal, and the size of the body that the emulator received; None if there was none."""
    status: list[int] = []
    received: list[int] = []

    async def emulator(_scope: Any, receive: Any, _send: Any) -> None:
        received.append(0)
        while (message := await receive())["type"] == "http.request":
            received[0] += len(message["body"])
            if not message["more_body"]:
                return
        received.clear()

    async def record(message: Any) -> None:
        if "status" in message:
            status.append(message["status"])
        elif message["type"] == "websocket.close":
            status.append(message["code"])

    messages = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]

    async def receive() -> Message:
        return messages.pop(0)

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "headers": pairs}
    asyncio.run(Front(emulator, port=PORT, access_key=KEY)(scope, receive, record))
    return next(iter(status), None), next(iter(received), None)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": f"localhost:{PORT}"},
        {"host": f"LOCALHOST:{PORT}"},
        {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"authorization": "Bearer gw_dev_x"},
    ],
)
def test_api_is_open_for_callers_on_this_machine(headers: dict[str, str]) -> None:
    """A token is all that they need, as on AWS."""
    assert send(API, OWN_HOST | headers, chunks=(b"ab", b"c")) == (None, 3)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": f"evil.example:{PORT}"},
        {"host": "127.0.0.1"},
        {"host": f"127.0.0.1:{PORT + 1}"},
        {"host": f"grantwire.execute-api.localhost:{PORT}"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_web_pages_and_foreign_names_are_refused(headers: dict[str, str]) -> None:
    """A page has another origin, and a name that resolves to this machine (DNS rebinding) has another host."""
    assert send(API, OWN_HOST | headers) == (403, None)


def test_request_without_a_host_is_refused() -> None:
    """HTTP/1.0 allows it, but no client of the API sends it."""
    assert send(API, {}) == (403, None)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/2015-03-31/functions",
        "/2015-03-31/functions/grantwire-local-grant/invocations",
        "/_ministack/health",
        "/_ministack/reset",
        "/_ministack/lambda-code/x",
        "/_aws/lambda-url/x/",
        "/_aws/execute-api/",
        "/_aws/execute-api/grantwire",
        "/_aws/execute-api//local/v1",
        "/_aws/execute-api/grantwire/local/@connections/x",
        "/x/_aws/execute-api/grantwire/local/v1",
        "/restapis/grantwire/local/_user_request_/v1",
        "/grantwire-artifacts/key",
    ],
)
def test_everything_else_needs_the_access_key(path: str) -> None:
    """Neither no key, nor another one, nor a part of it is enough. A function sends it as its session token."""
    assert send(path, OWN_HOST) == (403, None)
    for wrong in ("local", "000000000000", KEY[:-1], KEY + "0", KEY.upper()):
        signature = SIGNED["authorization"].replace(KEY, wrong)
        assert send(path, OWN_HOST | {"authorization": signature}) == (403, None)
        assert send(path, OWN_HOST | {"x-amz-security-token": wrong}) == (403, None)
    assert send(path, OWN_HOST | SIGNED) == (None, 0)
    assert send(path, OWN_HOST | {"x-amz-security-token": KEY}) == (None, 0)


def test_unfinished_body_ends_the_request() -> None:
    """G14: a caller without the access key cannot hold connections by bodies that never end."""
    ended: list[str] = []

    async def emulator(_scope: Any, receive: Any, _send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        ended.append(message["type"])

    async def send_half() -> None:
        parts: list[Message] = [{"type": "http.request", "body": b"x", "more_body": True}]
        never = asyncio.Event()

        async def receive() -> Message:
            if not parts:
                await never.wait()
            return parts.pop()

        scope = {"type": "http", "path": API, "headers": [(b"host", OWN_HOST["host"].encode())]}
        await Front(emulator, port=PORT, access_key=KEY, body_seconds=0.01)(scope, receive, _ignore)

    asyncio.run(asyncio.wait_for(send_half(), WAIT_SECONDS))
    assert ended == ["http.disconnect"]


def test_caller_may_wait_for_the_response_for_longer() -> None:
    """The limit is for the request: when its body is complete, the emulator only waits for the caller to disconnect."""
    received: list[str] = []

    async def emulator(_scope: Any, receive: Any, _send: Any) -> None:
        received.extend([(await receive())["type"], (await receive())["type"]])

    async def send_all() -> None:
        parts: list[Message] = [
            {"type": "http.response"},
            {"type": "http.request", "body": b"x", "more_body": False},
        ]

        async def receive() -> Message:
            if len(parts) == 1:
                await asyncio.sleep(0.05)  # longer than the limit
            return parts.pop()

        scope = {"type": "http", "path": API, "headers": [(b"host", OWN_HOST["host"].encode())]}
        await Front(emulator, port=PORT, access_key=KEY, body_seconds=0.01)(scope, receive, _ignore)

    asyncio.run(send_all())
    assert received == ["http.request", "http.response"]


async def _ignore(_message: Any) -> None:
    pass


def test_websockets_need_the_access_key() -> None:
    """The API has none, and the emulator runs functions for messages of a WebSocket."""
    assert send(API, OWN_HOST, kind="websocket") == (1008, None)


@pytest.mark.parametrize(
    ("headers", "chunks", "expected"),
    [
        ({"content-length": str(MAX_BODY_BYTES + 1)}, (b"",), (413, None)),
        ({}, (b"x" * MAX_BODY_BYTES, b"x"), (None, None)),
        ({}, (b"x" * MAX_BODY_BYTES,), (None, MAX_BODY_BYTES)),
    ],
)
def test_body_is_bounded(headers: dict[str, str], chunks: tuple[bytes, ...], expected: tuple[int | None, ...]) -> None:
    """A caller without the access key cannot fill the memory of the emulator, with or without a declared length."""
    assert send(API, OWN_HOST | headers, chunks=chunks) == expected
    if expected[1] is None:
        assert send(API, OWN_HOST | SIGNED | headers, chunks=chunks)[1] == sum(map(len, chunks))
