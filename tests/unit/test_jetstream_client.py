"""What arrives from NATS reaches its handler whole and in order, in whatever pieces the network delivers it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from grantwire.errors import RetryableError
from grantwire.jetstream.client import QuickClient

if TYPE_CHECKING:
    from collections.abc import Sequence

HANDLED, OTHER = 1, 2
Message = tuple[bytes, bytes, bytes, bytes | None]

_HEADERS = b"NATS/1.0\r\na: b\r\n\r\n"
_payloads = st.binary(max_size=40) | st.sampled_from([b"", b"\r\n", b"MSG x 1 3\r\nabc\r\n", b"+OK\r\n"])
_messages = st.tuples(
    st.sampled_from([b"_INBOX.a.1", b"x"]),
    st.sampled_from([b"", b"$JS.ACK.x"]),
    _payloads,
    st.sampled_from([None, _HEADERS]),
)
_frames = st.lists(st.tuples(st.sampled_from([HANDLED, OTHER]), _messages) | st.sampled_from([b"PING\r\n", b"+OK\r\n"]))


class _Client(QuickClient):
    """Notes what it was given; it is not connected to anything."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[Message] = []
        self.pings = 0
        self.handlers[HANDLED] = lambda *message: self.handed.append(message)

    async def _process_ping(self) -> None:
        self.pings += 1


def _wire(sid: int, message: Message) -> bytes:
    subject, reply, payload, headers = message
    place = b" ".join(filter(None, [subject, b"%d" % sid, reply]))
    if headers is None:
        return b"MSG %b %d\r\n%b\r\n" % (place, len(payload), payload)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (place, len(headers), len(headers) + len(payload), headers, payload)


@given(_frames, st.lists(st.integers(1, 30)))
def test_messages_are_read_however_they_are_cut(
    frames: Sequence[bytes | tuple[int, Message]], lengths: Sequence[int]
) -> None:
    """Those of a handler, those of others and the server's own words, in one stream of bytes."""
    data = b"".join(frame if isinstance(frame, bytes) else _wire(*frame) for frame in frames)
    client = _Client()

    async def read() -> None:
        rest = data
        for length in lengths:
            await client._ps.parse(rest[:length])  # noqa: SLF001 - what the library's own reader calls
            rest = rest[length:]
        await client._ps.parse(rest)  # noqa: SLF001

    asyncio.run(read())
    wanted = [frame[1] for frame in frames if isinstance(frame, tuple) and frame[0] == HANDLED]
    assert client.handed == wanted
    assert client.pings == sum(frame == b"PING\r\n" for frame in frames)
    assert not client._ps.buf  # noqa: SLF001


def test_a_handler_that_fails_keeps_nobody_from_reading_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It is logged; the next message is handed over."""
    client = _Client()
    messages: list[Message] = [(b"x", b"", b"%d" % number, None) for number in range(3)]

    def fails_once(*message: bytes | None) -> None:
        if message[2] == b"1":
            raise ZeroDivisionError
        client.handed.append(message)  # type: ignore[arg-type]

    client.handlers[HANDLED] = fails_once
    asyncio.run(client._ps.parse(b"".join(_wire(HANDLED, message) for message in messages)))  # noqa: SLF001
    assert [message[2] for message in client.handed] == [b"0", b"2"]
    assert "a message could not be handled" in capsys.readouterr().out


@pytest.mark.parametrize("nonsense", [b"MSG\r\n", b"MSG x\r\n", b"MSG x one 3\r\nabc\r\n", b"HMSG x 1 2\r\nab\r\n"])
def test_what_makes_no_sense_is_left_to_the_library(nonsense: bytes) -> None:
    """Which ends the connection, or waits for more; it must not be taken for a message."""
    client = _Client()
    with contextlib.suppress(ProtocolError):
        asyncio.run(client._ps.parse(nonsense))  # noqa: SLF001
    assert client.handed == []


def test_nothing_is_written_without_a_connection() -> None:
    """It would be lost without a trace."""
    with pytest.raises(RetryableError, match="not connected"):
        QuickClient().write(b"PING\r\n")
