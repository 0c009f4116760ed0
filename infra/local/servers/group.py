"""The servers of one state folder. Standard library only: they can be stopped with nothing installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import DESCRIPTION, STATE
from infra.local.progress import Progress
from infra.local.servers.emulator import EmulatorServer
from infra.local.servers.nats import NatsServer
from infra.local.servers.postgres import PostgresServer
from infra.local.system import programs
from infra.local.system.locks import exclusive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.servers.server import Server

KINDS = (PostgresServer, NatsServer, EmulatorServer)
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
        ports = {server: self._fixed_port(server) for server in KINDS}
        folder, port = self.state / "postgres", ports[PostgresServer]
        self.postgres = PostgresServer(folder, port=port, settings=database_settings)
        self.nats = NatsServer(self.state / "nats", port=ports[NatsServer])
        self.emulator = EmulatorServer(self.state / "aws", port=ports[EmulatorServer])

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers in the order in which they start."""
        return (self.postgres, self.nats, self.emulator)

    @property
    def description(self) -> Path:
        """The file that tells scripts where everything is."""
        return self.state / DESCRIPTION

    def start(self) -> None:
        """Start what does not run."""
        for server in self.servers:
            with self.progress.step(f"Starting {TITLES[server.name]}"):
                server.start()
        if not self.postgres.folder.is_relative_to(self.state):
            self.progress.say(f"  PostgreSQL's files are in {self.postgres.folder}: it does not run as root, and")
            self.progress.say(f"  other accounts may not enter {self.state}. `make clean` removes them.")

    def down(self) -> None:
        """Stop everything that was started, and only that; data stay."""
        if not self.state.exists():
            return
        with exclusive(self.state / "stack.lock", self.progress):
            for record in self.state.glob("*/tool.json"):
                programs.end_recorded(record)
            for server in reversed(self.servers):
                if server.alive():
                    with self.progress.step(f"Stopping {TITLES[server.name]}"):
                        server.stop()
                server.stop()  # also what a dead server left behind
            self.description.unlink(missing_ok=True)

    def _fixed_port(self, server: type[Server]) -> int | None:
        """Read the port that a person asked for; it is meant for the checkout's own stack, not for tests."""
        value = os.environ.get(server.port_variable, "") if self.state == STATE else ""
        if value and not (value.isdigit() and 0 < int(value) < 65536):  # noqa: PLR2004
            raise CommandError(f"{server.port_variable}={value} is not a port.")
        return int(value) if value else None


def stop_below(folder: Path, *others: type[Server]) -> None:
    """Stop every server of these and other kinds that has its state below a folder, and delete what it keeps."""
    for kind in (*others, *reversed(KINDS)):
        for record in list(folder.rglob(f"{kind.name}.json")):  # before folders go
            kind(record.parent).destroy()
