"""HTTP exchanges, each with one deadline for all of it, over connections that are kept open (G5).

A timeout of a socket limits one operation: a receiver that sends a byte now and then could hold a thread for minutes.
Here every operation gets only the time that is left until the deadline: look-up of the name, connect, TLS handshake,
request, response headers and body.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.tls import Certificates

_PORTS = {"http": 80, "https": 443}
# A longer response body is not read to its end, and its connection is closed.
_MAX_BODY_BYTES = 16 * 1024


class Reply(NamedTuple):
    """What matters of a response: its status and its header Retry-After."""

    status: int
    retry_after: str | None = None


class _Deadline:
    """The end of one exchange."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds that are left; raise TimeoutError if there are none."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds


class _Origin(NamedTuple):
    """Scheme, host and port of a URL, which decide whether a kept connection can be used."""

    scheme: str
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme])


class _BoundedSocket(io.RawIOBase):
    """The methods of a socket that http.client uses; each ends at the deadline of the current exchange."""

    def __init__(self, connected: socket.socket, deadline: _Deadline) -> None:
        super().__init__()
        self._socket = connected
        self.deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send all data."""
        unsent = memoryview(data)
        while unsent:
            self._socket.settimeout(self.deadline.remaining())
            unsent = unsent[self._socket.send(unsent) :]

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive up to the size of the buffer; return 0 at the end of the stream."""
        self._socket.settimeout(self.deadline.remaining())
        return self._socket.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of one response; closing it leaves the socket open."""
        return io.BufferedReader(_ResponseReader(self))

    def is_stale(self) -> bool:
        """Return whether an idle connection has something to read: its end, or data that belongs to no request."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the socket."""
        super().close()
        self._socket.close()


class _ResponseReader(io.RawIOBase):
    def __init__(self, bounded: _BoundedSocket) -> None:
        super().__init__()
        self._bounded = bounded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._bounded.readinto(buffer)


class _Connection:
    """An HTTP connection to one origin, for one exchange after the other."""

    def __init__(self, origin: _Origin, connected: socket.socket, deadline: _Deadline) -> None:
        self.origin = origin
        self._bounded = _BoundedSocket(connected, deadline)
        self._http = http.client.HTTPConnection(origin.host, origin.port)
        self._http.auto_open = 0
        self._http.sock = cast("socket.socket", self._bounded)

    def post(self, target: str, body: bytes, headers: Mapping[str, str], deadline: _Deadline) -> tuple[Reply, bool]:
        """Return the reply of the receiver, and whether the connection can be used again.

        The status decides about the request. So a body that is too long, too slow or incomplete only ends the
        connection.
        """
        self._bounded.deadline = deadline
        self._http.request("POST", target, body, dict(headers))
        response = self._http.getresponse()
        reply = Reply(response.status, response.getheader("Retry-After"))
        if response.will_close:
            return reply, False
        try:
            response.read(_MAX_BODY_BYTES)
            return reply, response.isclosed()
        except (OSError, http.client.HTTPException):
            return reply, False
        finally:
            response.close()

    def is_stale(self) -> bool:
        """Return whether the receiver has closed the idle connection."""
        return self._bounded.is_stale()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()
        self._bounded.close()


class ExchangeClient:
    """Sends requests from up to `concurrency` threads, each over a connection of its own that is kept for the next one.

    Redirects are not followed.
    """

    def __init__(self, timeout: float, concurrency: int, authorities: Certificates) -> None:
        self._timeout = timeout
        self._authorities = authorities
        self._context: ssl.SSLContext | None = None
        # getaddrinfo has no timeout. Its threads are few, so that a resolver that hangs cannot use up all memory.
        self._resolver = ThreadPoolExecutor(concurrency, thread_name_prefix="resolver")
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._generation = 0

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """POST to the URL and return the reply.

        Raises TimeoutError if there is no status before the deadline, and OSError or HTTPException for other faults.
        A request on a kept connection that the receiver closed at the same moment is repeated once on a new one.
        """
        deadline = _Deadline(self._timeout)
        origin, parts = _Origin.from_url(url), urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = (target, body, {"Host": parts.netloc, **headers}, deadline)
        kept = self._take(origin)
        if kept is not None:
            try:
                return self._exchange(kept, *request)
            except (ConnectionError, ssl.SSLError):
                pass  # the receiver ignores a repeat, because it has the same id
        return self._exchange(self._connect(origin, deadline), *request)

    def close(self) -> None:
        """Close the idle connections, and those in use when their exchange ends. The client stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for connection in idle:
            connection.close()

    def _exchange(
        self, connection: _Connection, target: str, body: bytes, headers: Mapping[str, str], deadline: _Deadline
    ) -> Reply:
        generation, is_reusable = self._generation, False
        try:
            reply, is_reusable = connection.post(target, body, headers, deadline)
        finally:
            with self._lock:
                is_kept = is_reusable and generation == self._generation
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()
        return reply

    def _take(self, origin: _Origin) -> _Connection | None:
        """Return an idle connection to the origin, and close those that cannot be used any more."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.origin == origin and not connection.is_stale():
                return connection
            connection.close()

    def _connect(self, origin: _Origin, deadline: _Deadline) -> _Connection:
        """Connect to one of the addresses of the host; each gets its share of the time that is left."""
        addresses = self._resolve(origin, deadline)
        fault: OSError = OSError(f"no address of {origin.host}")
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            candidate = socket.socket(family, kind, protocol)
            try:
                candidate.settimeout(deadline.remaining() / (len(addresses) - number))
                candidate.connect(address)
                candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _Connection(origin, self._secure(candidate, origin, deadline), deadline)
            except OSError as error:
                candidate.close()
                fault = error
        raise fault

    def _secure(self, connected: socket.socket, origin: _Origin, deadline: _Deadline) -> socket.socket:
        """Start TLS, if the URL requires it."""
        if origin.scheme == "http":
            return connected
        if self._context is None:
            self._context = self._authorities.ssl_context()
        connected.settimeout(deadline.remaining())  # Python applies it to the whole handshake
        return self._context.wrap_socket(connected, server_hostname=origin.host)

    def _resolve(self, origin: _Origin, deadline: _Deadline) -> list[Any]:
        lookup = self._resolver.submit(socket.getaddrinfo, origin.host, origin.port, type=socket.SOCK_STREAM)
        try:
            return lookup.result(timeout=deadline.remaining())
        except UnicodeError as error:  # a name that cannot be encoded
            raise OSError(f"invalid host name: {error}") from error
        except TimeoutError:
            lookup.cancel()
            raise TimeoutError("look-up of the host timed out") from None
