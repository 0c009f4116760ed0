"""NATS without a client library: one socket and prepared bytes, so that almost all time is the server's."""

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

_OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
_TIMEOUT_SECONDS = 30.0
_READ_BYTES = 1 << 18
_CHUNK_FRAMES = 256
# JetStream refuses messages when 10,000 messages of one stream wait to be stored.
_MAX_UNACKNOWLEDGED = 5_000
# Each response that is not a plain acknowledgement contains one of these.
_NOT_ACKNOWLEDGED = (b'"error"', b'"duplicate"', b"HMSG ", b"-ERR")
# A message with headers has a reply subject. A status message has none, and so one field less.
_FIELDS_OF_A_MESSAGE = 6


class RawNats:
    """One connection that receives every response on one inbox subject."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=_TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._rest = b""
        options = {**_OPTIONS, "user": address.username, "pass": address.password}
        self._socket.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}.* 1\r\nPING\r\n".encode())
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
        """Return the bytes that publish a message whose acknowledgement comes to this connection."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        control = f"HPUB {subject} {self._inbox}.a {len(head)} {len(head) + len(payload)}\r\n"
        return control.encode() + head + payload + b"\r\n"

    def publish_pipelined(self, frames: Sequence[bytes]) -> None:
        """Publish as fast as the server reads, and return when JetStream has acknowledged every message."""
        sent = acknowledged = 0
        unsent = memoryview(b"")
        self._socket.setblocking(False)  # a blocking write could deadlock with a server that waits for us to read
        while acknowledged < len(frames):
            if not unsent and sent < len(frames) and sent - acknowledged < _MAX_UNACKNOWLEDGED:
                chunk = frames[sent : sent + _CHUNK_FRAMES]
                unsent = memoryview(b"".join(chunk))
                sent += len(chunk)
            ready = select.select([self._socket], [self._socket] if unsent else [], [], _TIMEOUT_SECONDS)
            if not any(ready):
                raise TimeoutError(f"{len(frames) - acknowledged} acknowledgements are missing")
            if ready[1]:
                unsent = unsent[self._socket.send(unsent) :]
            if ready[0]:
                acknowledged += self._acknowledgements()
        self._socket.settimeout(_TIMEOUT_SECONDS)

    def publish_one_by_one(self, frames: Sequence[bytes]) -> None:
        """Publish each message after the acknowledgement of the previous one."""
        for frame in frames:
            self._socket.sendall(frame)
            while not self._acknowledgements():
                pass

    def fetch_and_ack(self, stream: str, durable: str, *, batch: int, count: int) -> None:
        """Fetch `count` messages from a consumer, and acknowledge each batch when it is complete."""
        self._pull(stream, durable, min(batch, count))
        while count:
            expected = min(batch, count)
            acks: list[bytes] = []
            while len(acks) < expected:
                acks += [b"PUB %b 4\r\n+ACK\r\n" % reply_subject for reply_subject, _ in self._messages()]
            count -= expected
            if count:
                self._pull(stream, durable, min(batch, count))
            self._socket.sendall(b"".join(acks))
        self._socket.sendall(b"PING\r\n")
        while b"PONG\r\n" not in self._rest:
            self._rest += self._read()
        self._rest = b""

    def request(self, subject: str, **body: Any) -> dict[str, Any]:
        """Send a request to JetStream's API and return the response. Raises RuntimeError if it is an error."""
        self._publish(subject, json.dumps(body).encode() if body else b"")
        messages: list[tuple[bytes, bytes]] = []
        while not messages:
            messages += self._messages()
        response: dict[str, Any] = json.loads(messages[0][1])
        if "error" in response:
            raise RuntimeError(f"{subject}: {response['error']}")
        return response

    def _pull(self, stream: str, durable: str, batch: int) -> None:
        self._publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", b'{"batch":%d,"no_wait":true}' % batch)

    def _publish(self, subject: str, payload: bytes) -> None:
        self._socket.sendall(f"PUB {subject} {self._inbox}.r {len(payload)}\r\n".encode() + payload + b"\r\n")

    def _read(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("NATS closed the connection")
        return data

    def _acknowledgements(self) -> int:
        """Read from the socket and return the number of complete acknowledgements."""
        data = self._rest + self._read()
        if any(mark in data for mark in _NOT_ACKNOWLEDGED):
            raise RuntimeError(f"not acknowledged: {data[:500]!r}")
        complete, _, self._rest = data.rpartition(b"}\r\n")
        return complete.count(b'"seq":')

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Read from the socket and yield the reply subject and the data of each complete message."""
        data, position = self._rest + self._read(), 0
        while (end := data.find(b"\r\n", position)) >= 0:
            fields = data[position:end].split()
            if fields[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
                position = end + 2
                continue
            if fields[0] not in {b"MSG", b"HMSG"}:
                raise RuntimeError(f"unexpected: {data[position:end]!r}")
            after = end + 2 + int(fields[-1]) + 2
            if after > len(data):
                break
            headers = int(fields[-2]) if fields[0] == b"HMSG" else 0
            if headers and len(fields) < _FIELDS_OF_A_MESSAGE:
                raise RuntimeError(f"status instead of a message: {data[end + 2 : after]!r}")
            yield fields[3], data[end + 2 + headers : after - 2]
            position = after
        self._rest = data[position:]
