"""Ports of the loopback interface, on which every local server listens."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def find_free_port() -> int:
    """Return a port on which no server listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
