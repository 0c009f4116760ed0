"""The port forwarding from containers to servers of this machine. Another loopback address replaces the bridge."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from infra.local.containers.engine import Bridge
from infra.local.containers.forwarding import forward_ports
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from infra.local.servers.postgres import PostgresServer

ADDRESS = "127.0.0.2"
LOOPBACK_NETWORK = ipaddress.IPv4Network("127.0.0.0/8")
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
OTHER_NETWORK = ipaddress.IPv4Network("192.0.2.0/24")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only needed on Linux")


def test_server_is_reached_through_the_bridge(server: PostgresServer) -> None:
    """Two connections transfer more than one chunk in both directions. Afterwards, the port is closed."""
    url = server.url().replace("127.0.0.1", ADDRESS)
    bridge = Bridge(ADDRESS, LOOPBACK_NETWORK)
    with forward_ports(bridge, [server.port]), psycopg.connect(url) as first, psycopg.connect(url) as second:
        for connection in (first, second):
            echoed = connection.execute("SELECT %s::text || repeat('y', 300000)", ("x" * 300_000,)).fetchone()
            assert echoed == ("x" * 300_000 + "y" * 300_000,)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_connection_that_is_still_open_is_closed_at_the_end(server: PostgresServer) -> None:
    """J5: a failed command leaves neither a connection nor a thread behind, although its container may still run."""
    before = set(threading.enumerate())
    with socket.socket() as client, forward_ports(Bridge(ADDRESS, LOOPBACK_NETWORK), [server.port]):
        client.settimeout(60)
        client.connect((ADDRESS, server.port))
        client.sendall(SSL_REQUEST)
        assert client.recv(1) in {b"N", b"S"}  # the connection is forwarded, and PostgreSQL waits for the next message
    assert set(threading.enumerate()) <= before  # a thread of an earlier test may end meanwhile


def test_connection_from_outside_the_bridge_network_is_closed(server: PostgresServer) -> None:
    """The client receives no data."""
    with (
        forward_ports(Bridge(ADDRESS, OTHER_NETWORK), [server.port]),
        socket.create_connection((ADDRESS, server.port), timeout=60) as client,
    ):
        assert client.recv(1) == b""


def test_connection_is_closed_if_the_server_is_down() -> None:
    """The client does not hang."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = bound.getsockname()[1]
        with (
            forward_ports(Bridge(ADDRESS, LOOPBACK_NETWORK), [port]),
            socket.create_connection((ADDRESS, port), timeout=60) as client,
        ):
            assert client.recv(1) == b""


def test_bridge_address_of_another_machine_raises_command_error() -> None:
    """The engine may run on another machine."""
    bridge = Bridge("192.0.2.1", OTHER_NETWORK)
    with pytest.raises(CommandError, match="Cannot listen"), forward_ports(bridge, [4222]):
        pass
