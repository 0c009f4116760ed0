"""PgBouncer in front of a PostgreSQL of the tests, in transaction mode: each transaction may get another session."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote, urlsplit, urlunsplit

from infra.local.servers.server import Server
from infra.local.system import files, unprivileged
from infra.local.system.ports import HOST
from infra.local.system.processes import Launch

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = """
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {sessions}
"""


def find_pgbouncer() -> str | None:
    """Return the path of the program, or None. Debian installs it in a folder for administrators."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


class PgBouncer(Server):
    """A PgBouncer for the users and the server of some addresses. Its clients share a few sessions."""

    name: ClassVar[str] = "pgbouncer"
    port_variable: ClassVar[str] = "GRANTWIRE_PGBOUNCER_PORT"
    runs_unprivileged: ClassVar[bool] = True

    def __init__(self, state: Path, *urls: str, sessions: int = 2) -> None:
        super().__init__(state)
        self._urls = [urlsplit(url) for url in urls]
        self._sessions = sessions

    @property
    def temporary(self) -> Path:
        """The temporary directory, which the server's account can write to."""
        return self._folder / "tmp"

    def url(self, url: str) -> str:
        """Return the address of the same database and user through the pooler."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@{HOST}:{self.port}"))

    def destroy(self) -> None:
        """Stop the server and delete its files."""
        self.kill()
        unprivileged.remove_data(self._folder)
        super().destroy()

    @property
    def _folder(self) -> Path:
        return unprivileged.data_folder(self.state)

    def _prepare(self) -> None:
        unprivileged.create_data_folder(self.state)
        users = [f'"{unquote(url.username or "")}" "{unquote(url.password or "")}"' for url in self._urls]
        files.write_private(self._folder / "users.txt", "\n".join(users), owner=unprivileged.account())

    def _command(self, port: int) -> Launch:
        settings = _SETTINGS.format(
            host=HOST,
            port=port,
            server_port=self._urls[0].port,
            users=self._folder / "users.txt",
            sessions=self._sessions,
        )
        path = self._folder / "pgbouncer.ini"
        files.write_private(path, settings, owner=unprivileged.account())
        return Launch(
            command=[find_pgbouncer() or "pgbouncer", path],
            environment={"PATH": "/usr/bin:/bin", "HOME": str(self._folder)},
            log=self.log,
            directory=self._folder,
            account=unprivileged.account(),
        )

    def _is_ready(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True
