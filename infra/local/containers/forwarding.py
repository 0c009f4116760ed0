"""Let containers reach servers that listen on 127.0.0.1 only.

On Linux a container reaches the host at the bridge's address, where our servers do not listen, and should not.
So this listens there, on the same ports, for as long as it is needed. It serves nobody but containers: a peer whose
address is not the bridge's own network is turned away, also one that sent its packets here through another interface.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import socketserver
import threading
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infra.local.containers.engine import Bridge

CHUNK = 65536


@contextlib.contextmanager
def forwarding(bridge: Bridge, ports: Iterable[int]) -> Iterator[None]:
    """While inside, connections from the bridge to these ports arrive at 127.0.0.1."""
    with contextlib.ExitStack() as stack:
        for port in sorted(set(ports)):
            stack.enter_context(_serving(_listen(bridge, port)))
        yield


class _Listener(socketserver.ThreadingTCPServer):
    """One port; each connection is relayed in threads of its own."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, bridge: Bridge, port: int) -> None:
        self._network = bridge.network
        super().__init__((bridge.address, port), _Relay)

    def verify_request(self, _request: object, client_address: tuple[str, int]) -> bool:
        """Turn away whoever is no container."""
        return ipaddress.ip_address(client_address[0]) in self._network


class _Relay(socketserver.BaseRequestHandler):
    """One connection: what either side sends goes to the other, until both have ended."""

    def handle(self) -> None:
        client: socket.socket = self.request
        port = client.getsockname()[1]
        try:
            server = socket.create_connection((HOST, port), timeout=10)
        except OSError:
            return  # nobody there: the client sees its connection end
        server.settimeout(None)
        with server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and pass its end on; if either side breaks, break both."""
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _listen(bridge: Bridge, port: int) -> _Listener:
    try:
        return _Listener(bridge, port)
    except OSError as error:
        hint = "An engine on another machine, or one without root's rights, has its bridge elsewhere: use another one."
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
        listener.server_close()
