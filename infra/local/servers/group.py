"""The servers of one state folder. Standard library only, so that they can be stopped with nothing installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.progress import Progress
from infra.local.servers.emulator import EmulatorServer
from infra.local.servers.nats import NatsServer
from infra.local.servers.nats_users import Names
from infra.local.servers.postgres import PostgresServer
from infra.local.system import programs
from infra.local.system.locks import hold_lock, stack_lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.servers.server import Server

SERVER_TYPES = (PostgresServer, NatsServer, EmulatorServer)
TITLES = {"postgres": "PostgreSQL", "nats": "NATS", "emulator": "the AWS emulator", "localstack": "LocalStack"}


class ServerGroup:
    """PostgreSQL, NATS and the AWS emulator."""

    def __init__(
        self,
        state: Path,
        *,
        progress: Progress | None = None,
        database_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.state = state.absolute()
        self.progress = progress or Progress()
        ports = {server: self._fixed_port(server) for server in SERVER_TYPES}
        folder, port = self.state / "postgres", ports[PostgresServer]
        self.postgres = PostgresServer(folder, port=port, settings=database_settings)
        self.nats = NatsServer(self.state / "nats", port=ports[NatsServer], names=Names(faults=True))
        self.emulator = EmulatorServer(self.state / "aws", port=ports[EmulatorServer])

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers in the order in which they start."""
        return (self.postgres, self.nats, self.emulator)

    @property
    def description(self) -> Path:
        """The file with the stack's addresses, for scripts."""
        return self.state / DESCRIPTION

    def start(self) -> None:
        """Start the servers that do not run."""
        for server in self.servers:
            with self.progress.step(f"Starting {TITLES[server.name]}"):
                server.start()
        if not self.postgres.folder.is_relative_to(self.state):
            self.progress.print_line(
                f"  PostgreSQL does not run as root, and other accounts cannot enter {self.state}.\n"
                f"  Its files are in {self.postgres.folder}; `make clean` removes them."
            )

    def down(self) -> None:
        """Stop the programs and servers that this checkout started; keep their data."""
        if not self.state.exists():
            return
        with hold_lock(stack_lock(self.state), self.progress):
            for record in self.state.glob("*/tool.json"):
                programs.stop_recorded(record)
            for server in reversed(self.servers):
                if server.is_alive():
                    with self.progress.step(f"Stopping {TITLES[server.name]}"):
                        server.stop()
                server.stop()  # also removes what a crashed server left
            self.description.unlink(missing_ok=True)

    def _fixed_port(self, server: type[Server]) -> int | None:
        """Return the port from the environment; it applies to the checkout's own stack, not to tests."""
        value = os.environ.get(server.port_variable, "") if self.state == STATE else ""
        if value and not (value.isdigit() and 0 < int(value) < 65536):  # noqa: PLR2004
            raise CommandError(f"{server.port_variable} must be a port from 1 to 65535, not {value}.")
        return int(value) if value else None


def destroy_servers_below(folder: Path, *others: type[Server]) -> None:
    """Stop every server whose state is below a folder, and delete its data.

    `others` are server types in addition to those of the local stack.
    """
    for server_type in (*others, *reversed(SERVER_TYPES)):
        for record in list(folder.rglob(f"{server_type.name}.json")):  # a list: `destroy` deletes folders
            server_type(record.parent).destroy()
