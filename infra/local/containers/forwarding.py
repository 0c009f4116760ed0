"""Port forwarding, so that containers reach servers that listen on 127.0.0.1 only.

On Linux, a container reaches the host at the address of the bridge, on which the servers must not listen. This module
listens there on the same ports while it is needed. It serves only containers: a connection from an address outside the
bridge's network is closed, also if it arrives through another interface.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, cast

from infra.local.errors import CommandError
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infra.local.containers.engine import Bridge

CHUNK_BYTES = 65536


@contextlib.contextmanager
def forward_ports(bridge: Bridge, ports: Iterable[int]) -> Iterator[None]:
    """Forward connections from the bridge to these ports of 127.0.0.1 inside the block.

    At its end, connections that are still open are closed: a container may outlive the command that started it. Raises
    CommandError if this machine cannot listen on the bridge.
    """
    with contextlib.ExitStack() as stack:
        for port in sorted(set(ports)):
            stack.enter_context(_serving(_listen(bridge, port)))
        yield


class _Listener(socketserver.ThreadingTCPServer):
    """The listener of one port; each connection is forwarded in its own threads, which `server_close` waits for."""

    allow_reuse_address = True

    def __init__(self, bridge: Bridge, port: int) -> None:
        self._network = bridge.network
        self._open: set[socket.socket] = set()
        self._is_closing = False
        super().__init__((bridge.address, port), _Forwarder)

    def verify_request(self, _request: object, client_address: tuple[str, int]) -> bool:
        """Return whether the client is a container."""
        return ipaddress.ip_address(client_address[0]) in self._network

    @contextlib.contextmanager
    def closed_at_the_end(self, *connections: socket.socket) -> Iterator[None]:
        """Let `close_connections` end these connections inside the block, also if it was called before."""
        self._open.update(connections)
        if self._is_closing:
            self.close_connections()
        yield
        self._open.difference_update(connections)

    def close_connections(self) -> None:
        """End all open connections."""
        self._is_closing = True
        for connection in list(self._open):
            _shut_down(connection)


class _Forwarder(socketserver.BaseRequestHandler):
    """The handler of one connection: copies in both directions until both sides have closed."""

    def handle(self) -> None:
        client: socket.socket = self.request
        listener = cast("_Listener", self.server)
        port = client.getsockname()[1]
        try:
            server = socket.create_connection((HOST, port), timeout=10)
        except OSError:
            return  # the server is down: the client's connection is closed
        server.settimeout(None)
        with server, listener.closed_at_the_end(client, server):
            responses = threading.Thread(target=_copy, args=(server, client), daemon=True)
            responses.start()
            _copy(client, server)
            responses.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source closes, then close the target for writing; after an error, close both."""
    try:
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        _shut_down(source)
        _shut_down(target)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(bridge: Bridge, port: int) -> _Listener:
    try:
        return _Listener(bridge, port)
    except OSError as error:
        hint = "The bridge of a remote or rootless engine is not on this machine: use a local engine that runs as root."
        raise CommandError(f"Cannot listen on {bridge.address}:{port} for containers: {error}", hint=hint) from error


@contextlib.contextmanager
def _serving(listener: _Listener) -> Iterator[None]:
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown()
        thread.join()
        listener.close_connections()
        listener.server_close()
