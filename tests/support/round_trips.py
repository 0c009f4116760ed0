"""Counts how often a client waits for its server: a proxy between the two that notes who speaks."""

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
    """A way to `url` on which every change from listening to speaking, on the client's side, counts one."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or HOST, parts.port or 5432)
        self._door = socket.create_server((HOST, 0))
        credentials = parts.netloc.rpartition("@")[0]
        address = f"{HOST}:{self._door.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=f"{credentials}@{address}" if credentials else address))
        self.count = 0
        self._client_speaks = False
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in [self._door, *self._sockets]:
            each.close()

    def of(self, before: int) -> int:
        """How many since the count was `before`."""
        return self.count - before

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, sink, speaks in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=(source, sink, speaks), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, client_speaks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if client_speaks and not self._client_speaks:
                    self.count += 1
                self._client_speaks = client_speaks
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
