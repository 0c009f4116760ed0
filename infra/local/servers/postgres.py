"""PostgreSQL as a plain process, for the local stack and for tests."""

from __future__ import annotations

import secrets
import shutil
import signal
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from infra.local.errors import CommandError
from infra.local.servers.installations import Installation, find_installation, list_installations
from infra.local.servers.server import Server
from infra.local.system import files, unprivileged
from infra.local.system.ports import HOST
from infra.local.system.processes import Launch, command_line, program_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["SETTINGS", "UNSAFE", "PostgresServer", "list_installations", "postgres_url"]

SUPERUSER = "postgres"

# Each concurrent invocation of a function holds one connection.
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# For test data: several times faster, but the data do not survive a crash of the machine.
UNSAFE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def postgres_url(user: str, password: str, address: str, database: str) -> str:
    """Return the address of a database; names and passwords may contain any character."""
    name, secret, path = (quote(part, safe="") for part in (user, password, database))
    return f"postgresql://{name}:{secret}@{address}/{path}"


class PostgresServer(Server):
    """A PostgreSQL cluster in a state folder. It listens on 127.0.0.1 only and requires a password.

    In a test: `PostgresServer(tmp_path, settings=UNSAFE)`, then `start()`, `url("postgres")`, `destroy()`.
    """

    name: ClassVar[str] = "postgres"
    port_variable: ClassVar[str] = "GRANTWIRE_POSTGRES_PORT"
    runs_unprivileged: ClassVar[bool] = True
    ready_timeout: ClassVar[float] = 60.0  # recovery after a crash takes time
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # fast shutdown: SIGTERM would wait for sessions
    kill_signal: ClassVar[signal.Signals] = signal.SIGQUIT  # immediate shutdown: the next start recovers

    def __init__(
        self,
        state: Path,
        *,
        port: int | None = None,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(state, port=port)
        self._binaries = binaries
        self._settings = {**SETTINGS, **(settings or {})}

    @cached_property
    def installation(self) -> Installation:
        """The PostgreSQL that this server runs."""
        return find_installation(self._binaries)

    @property
    def major(self) -> int:
        """PostgreSQL's major version."""
        return self.installation.major

    @property
    def folder(self) -> Path:
        """The folder of the data: the state folder, or one that the unprivileged account can enter."""
        return unprivileged.data_folder(self.state)

    @property
    def temporary(self) -> Path:
        """The temporary directory, which the server's account can write to."""
        return self.folder / "tmp"

    @property
    def password(self) -> str:
        """The superuser's password."""
        return (self.state / "password").read_text()

    def url(self, database: str = SUPERUSER, user: str = SUPERUSER, password: str | None = None) -> str:
        """Return the address of a database for a client."""
        secret = self.password if password is None else password
        return postgres_url(user, secret, f"{HOST}:{self.port}", database)

    def destroy(self) -> None:
        """Kill the server and delete the cluster."""
        self.kill()
        unprivileged.remove_data(self.folder)
        super().destroy()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        unprivileged.create_data_folder(self.state)
        if not self._data.exists():
            self._initialise()
        major = (self._data / "PG_VERSION").read_text().strip()
        if major != str(self.major):
            problem = f"PostgreSQL {self.major} cannot read the data of PostgreSQL {major}."
            hint = f"Set GRANTWIRE_POSTGRES_BIN to the programs of version {major}, or delete the data: `make clean`."
            raise CommandError(problem, hint=hint)
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # stale: `_adopt_unrecorded` found no such server

    def _initialise(self) -> None:
        """Create the cluster in a new folder and rename it, so that an interrupt leaves no incomplete cluster."""
        incomplete = self.folder / "data.new"
        shutil.rmtree(incomplete, ignore_errors=True)
        pwfile = self._write_password()
        names: list[str | Path] = ["--pgdata", incomplete, "--username", SUPERUSER, "--pwfile", pwfile]
        options = ["--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-instructions"]
        unsafe = ["--no-sync"] if self._settings.get("fsync") == "off" else []
        code = self._spawn(self._launch_program("initdb", *names, *options, *unsafe), detached=False).wait()
        pwfile.unlink()
        if code:
            raise CommandError("initdb failed.", log=self.log)
        incomplete.rename(self._data)

    def _write_password(self) -> Path:
        """Choose the superuser's password, save it, and return a copy that the account of initdb can read."""
        secret = secrets.token_urlsafe(24)
        files.write_private(self.state / "password", secret)
        pwfile = self.folder / "password.initdb"
        files.write_private(pwfile, secret, owner=unprivileged.account())
        return pwfile

    def _command(self, port: int) -> Launch:
        settings = {**self._settings, "port": str(port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self._launch_program("postgres", "-D", self._data, *options)

    def _launch_program(self, program: str, *arguments: str | Path) -> Launch:
        binaries = unprivileged.accessible_binaries(self.installation.binaries, self.installation.version)
        return Launch(
            command=[binaries / program, *arguments],
            environment={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "LC_ALL": "C"},
            log=self.log,
            directory=self.folder,
            account=unprivileged.account(),
        )

    def _is_ready(self) -> bool:
        """Return whether the last line of PostgreSQL's lock file says that it is ready, as a primary or a standby."""
        lines = self._lock_file()
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() in {"ready", "standby"}  # noqa: PLR2004

    def _adopt_unrecorded(self) -> None:
        """Record a server whose start was killed before it was recorded; PostgreSQL's lock file names it."""
        lines = self._lock_file()
        if self.is_alive() or len(lines) <= 3 or not lines[0].isdigit():  # noqa: PLR2004
            return
        pid = int(lines[0])
        # Another program may have this id now, such as one that shows a file of this folder.
        if program_name(pid) == "postgres" and str(self._data) in command_line(pid):
            self._save_record(pid, int(lines[3]))

    def _lock_file(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []
