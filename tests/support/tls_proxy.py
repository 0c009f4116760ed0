"""A TLS proxy for the embedded PostgreSQL, whose wheel is built without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.support.certificates import Certificate

HOST = "127.0.0.1"
_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


class TlsProxy:
    """Proxy for the server at `url` that starts TLS with PostgreSQL's own handshake.

    A client that does not request TLS is disconnected. `secured` counts the connections with TLS, `in_clear` those
    that were refused because they did not request it.
    """

    def __init__(self, url: str, certificate: Certificate) -> None:
        self._parts = urlsplit(url)
        self._context = certificate.context()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self.secured = self.in_clear = 0
        self.address = ""

    @property
    def url(self) -> str:
        """Address of the same database through this proxy."""
        credentials = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{credentials}@{self.address}"))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(timeout=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        clients: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.add(asyncio.ensure_future(self._receive(reader, writer)))

        async with await asyncio.start_server(accept, HOST, 0) as server:
            self.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stopping.wait()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
                self.in_clear += 1
                return
            writer.write(b"S")
            await writer.start_tls(self._context)
            self.secured += 1
            server_reader, server_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            directions = ((reader, server_writer), (server_reader, writer))
            tasks = [asyncio.ensure_future(_forward(source, sink)) for source, sink in directions]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                server_writer.close()
        except (OSError, EOFError):
            return
        finally:
            writer.close()


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
