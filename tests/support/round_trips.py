"""A TCP proxy that counts the round trips between a client and its server."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOST = "127.0.0.1"


class RoundTrips:
    """Proxy for the server at `url`.

    A round trip begins each time the client sends data first or after data of the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or HOST, parts.port or 5432)
        self._listener = socket.create_server((HOST, 0))
        credentials = parts.netloc.rpartition("@")[0]
        address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=f"{credentials}@{address}" if credentials else address))
        self.count = 0
        self._client_sent_last = False
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in [self._listener, *self._sockets]:
            opened.close()

    def since(self, earlier: int) -> int:
        """Return the number of round trips since `count` was `earlier`."""
        return self.count - earlier

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, sink, from_client in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(source, sink, from_client), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if from_client and not self._client_sent_last:
                    self.count += 1
                self._client_sent_last = from_client
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
