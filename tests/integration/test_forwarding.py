"""The relay through which containers reach servers of this machine; another loopback address stands for the bridge."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from infra.local.containers.engine import Bridge
from infra.local.containers.forwarding import forward_ports
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from infra.local.servers.postgres import PostgresServer

ADDRESS = "127.0.0.2"
EVERYONE = ipaddress.IPv4Network("127.0.0.0/8")
NOBODY = ipaddress.IPv4Network("192.0.2.0/24")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux do containers need it")


def test_a_server_is_reached_through_the_bridge(server: PostgresServer) -> None:
    """Both ways, more than one chunk, two connections at once; and no longer than it is needed."""
    url = server.url().replace("127.0.0.1", ADDRESS)
    bridge = Bridge(ADDRESS, EVERYONE)
    with forward_ports(bridge, [server.port]), psycopg.connect(url) as one, psycopg.connect(url) as other:
        for connection in (one, other):
            echoed = connection.execute("SELECT %s::text || repeat('y', 300000)", ("x" * 300_000,)).fetchone()
            assert echoed == ("x" * 300_000 + "y" * 300_000,)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_only_the_bridge_s_own_network_is_served(server: PostgresServer) -> None:
    """A stranger's connection ends without a byte."""
    with (
        forward_ports(Bridge(ADDRESS, NOBODY), [server.port]),
        socket.create_connection((ADDRESS, server.port), timeout=5) as stranger,
    ):
        assert stranger.recv(1) == b""


def test_a_server_that_is_down_ends_the_connection() -> None:
    """It does not hang."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        port = taken.getsockname()[1]
        with (
            forward_ports(Bridge(ADDRESS, EVERYONE), [port]),
            socket.create_connection((ADDRESS, port), timeout=5) as client,
        ):
            assert client.recv(1) == b""


def test_an_address_that_is_not_ours_is_explained() -> None:
    """As with an engine on another machine."""
    with pytest.raises(CommandError, match="Cannot listen"), forward_ports(Bridge("192.0.2.1", NOBODY), [4222]):
        pass
