"""NATS without a client library: one socket and ready-made bytes, so that what it takes is the server's time."""

from __future__ import annotations

import json
import select
import socket
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

_GREETING = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
_PATIENCE = 30.0
_READ = 1 << 18
_CHUNK = 256
# JetStream refuses messages when 10,000 of one stream wait to be stored.
_WINDOW = 5_000
# Part of every answer that is no plain acknowledgement.
_WRONG = (b'"error"', b'"duplicate"', b"HMSG ", b"-ERR")
# With headers; a status has no address to answer to, and so one less.
_WORDS_OF_A_MESSAGE = 6


class RawNats:
    """One connection; everything that is answered comes to one inbox."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port), timeout=_PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._rest = b""
        self._socket.sendall(_GREETING + f"SUB {self._inbox}.* 1\r\nPING\r\n".encode())
        while b"PONG\r\n" not in self._rest:
            self._rest += self._read()
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def frame(self, subject: str, headers: Mapping[str, str], payload: bytes) -> bytes:
        """A message in the protocol's words, to be acknowledged here."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        order = f"HPUB {subject} {self._inbox}.a {len(head)} {len(head) + len(payload)}\r\n"
        return order.encode() + head + payload + b"\r\n"

    def publish_pipelined(self, frames: Sequence[bytes]) -> None:
        """Write as fast as the server reads, until JetStream has acknowledged every one."""
        sent = acknowledged = 0
        unsent = memoryview(b"")
        self._socket.setblocking(False)  # a write that waits for a server that waits for us to read would wait for ever
        while acknowledged < len(frames):
            if not unsent and sent < len(frames) and sent - acknowledged < _WINDOW:
                chunk = frames[sent : sent + _CHUNK]
                unsent = memoryview(b"".join(chunk))
                sent += len(chunk)
            ready = select.select([self._socket], [self._socket] if unsent else [], [], _PATIENCE)
            if not any(ready):
                raise TimeoutError(f"{len(frames) - acknowledged} acknowledgements are missing")
            if ready[1]:
                unsent = unsent[self._socket.send(unsent) :]
            if ready[0]:
                acknowledged += self._acknowledgements()
        self._socket.settimeout(_PATIENCE)

    def publish_one_by_one(self, frames: Sequence[bytes]) -> None:
        """Write the next when the one before it is acknowledged."""
        for frame in frames:
            self._socket.sendall(frame)
            while not self._acknowledgements():
                pass

    def fetch_and_ack(self, stream: str, durable: str, *, batch: int, count: int) -> None:
        """Take messages from a consumer, and acknowledge each batch when it is complete."""
        self._ask(stream, durable, min(batch, count))
        while count:
            taken = min(batch, count)
            answers: list[bytes] = []
            while len(answers) < taken:
                answers += [b"PUB %b 4\r\n+ACK\r\n" % reply for reply, _ in self._messages()]
            count -= taken
            if count:
                self._ask(stream, durable, min(batch, count))
            self._socket.sendall(b"".join(answers))
        self._socket.sendall(b"PING\r\n")
        while b"PONG\r\n" not in self._rest:
            self._rest += self._read()
        self._rest = b""

    def request(self, subject: str, **body: Any) -> dict[str, Any]:
        """Ask JetStream's API something."""
        self._publish(subject, json.dumps(body).encode() if body else b"")
        messages: list[tuple[bytes, bytes]] = []
        while not messages:
            messages += self._messages()
        answer: dict[str, Any] = json.loads(messages[0][1])
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer

    def _ask(self, stream: str, durable: str, batch: int) -> None:
        self._publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", b'{"batch":%d,"no_wait":true}' % batch)

    def _publish(self, subject: str, payload: bytes) -> None:
        self._socket.sendall(f"PUB {subject} {self._inbox}.r {len(payload)}\r\n".encode() + payload + b"\r\n")

    def _read(self) -> bytes:
        data = self._socket.recv(_READ)
        if not data:
            raise ConnectionError("NATS has closed the connection")
        return data

    def _acknowledgements(self) -> int:
        """How many have come; the last may be incomplete, and counts when its end has come."""
        data = self._rest + self._read()
        if any(mark in data for mark in _WRONG):
            raise RuntimeError(f"not acknowledged: {data[:500]!r}")
        whole, _, self._rest = data.rpartition(b"}\r\n")
        return whole.count(b'"seq":')

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        """The whole messages that are there: where to acknowledge each, and what it says."""
        data, at = self._rest + self._read(), 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split()
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
                at = end + 2
                continue
            if words[0] not in {b"MSG", b"HMSG"}:
                raise RuntimeError(f"unexpected: {data[at:end]!r}")
            after = end + 2 + int(words[-1]) + 2
            if after > len(data):
                break
            headers = int(words[-2]) if words[0] == b"HMSG" else 0
            if headers and len(words) < _WORDS_OF_A_MESSAGE:
                raise RuntimeError(f"no message: {data[end + 2 : after]!r}")
            yield words[3], data[end + 2 + headers : after - 2]
            at = after
        self._rest = data[at:]
