"""The containers of infra/compose.yaml, controlled with `docker compose`.

Standard library only, because `make down` uses it with nothing installed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT
from infra.local.servers.nats import NatsUsers
from infra.local.servers.nats_users import Names
from infra.local.system import files, programs
from infra.local.system.processes import Launch

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

FILE = CHECKOUT / "infra" / "compose.yaml"
LICENSED_IMAGE = "localstack/localstack:2026.08.3"
DEFAULT_API_PORT = 4566
HEALTH_TIMEOUT_SECONDS = 300  # without the time to pull the images
INSTALL_HINT = "Install Docker with its compose plugin: https://docs.docker.com/compose/install/"
UP_HINT = (
    "Check that the images can be pulled and that no port is in use. "
    "GRANTWIRE_API_PORT sets another port for LocalStack than 4566."
)


class Compose:
    """The containers of one checkout. Each checkout has its own compose project."""

    def __init__(self, state: Path) -> None:
        self.state = state.absolute()
        self.log = self.state / "compose.log"
        self.nats_users = NatsUsers(self.state, Names())
        self.project = f"grantwire-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    @property
    def is_licensed(self) -> bool:
        """Whether LOCALSTACK_AUTH_TOKEN is set, which selects LocalStack's licensed image."""
        return bool(os.environ.get("LOCALSTACK_AUTH_TOKEN"))

    @property
    def password(self) -> str:
        """The PostgreSQL superuser's password, chosen at the first start."""
        return str(self._record()["password"])

    @property
    def api_port(self) -> int:
        """LocalStack's port, the same inside and outside: GRANTWIRE_API_PORT, the last one, or 4566."""
        value = os.environ.get("GRANTWIRE_API_PORT") or self._record()["api_port"]
        if not str(value).isdigit():
            raise CommandError(f"GRANTWIRE_API_PORT must be a port number, not {value}.")
        return int(value)

    def may_have_volumes(self) -> bool:
        """Return whether there may be volumes of this project."""
        return self._record_file.exists()

    def may_have_containers(self) -> bool:
        """Return whether there may be containers of this project."""
        return self.may_have_volumes() and bool(self._record().get("up"))

    def check_available(self) -> None:
        """Raise CommandError if `docker compose` or the Docker engine is not available."""
        if self._query("docker", "compose", "version").returncode:
            raise CommandError("`docker compose` was not found.", hint=INSTALL_HINT)
        if self._query("docker", "version").returncode:
            raise CommandError("The Docker engine does not respond.", hint="Start it, or set DOCKER_HOST.")

    def up(self) -> None:
        """Start the containers that do not run, and wait until all are healthy."""
        must_restart_nats = self.may_have_containers() and not self.nats_users.is_written()
        self._save_record(self._record() | {"api_port": self.api_port, "up": True})
        self.nats_users.write()
        self._run("up", "--detach", "--wait", "--wait-timeout", str(HEALTH_TIMEOUT_SECONDS), hint=UP_HINT)
        if must_restart_nats:  # a running server does not read its file again
            self._run("restart", "nats")

    def restart(self, service: str) -> None:
        """Restart one service and wait until it is healthy."""
        self._run("restart", service)
        self.up()

    def down(self, *, volumes: bool = False) -> None:
        """Remove the containers; with `volumes`, also their data."""
        self._run("down", "--remove-orphans", *(["--volumes"] if volumes else []))
        self._save_record(self._record() | {"up": False})

    def running_services(self) -> set[str]:
        """Return the names of the running services."""
        result = self._query(*self.command("ps", "--services", "--status", "running"))
        return set(result.stdout.split())

    def port(self, service: str, container_port: int) -> int:
        """Return the port of this machine that is published for a service's port; 0 if it does not run."""
        result = self._query(*self.command("port", service, str(container_port)))
        return int(result.stdout.strip().rpartition(":")[2] or 0)

    def write_log(self, service: str) -> Path:
        """Write the last log lines of a service to a file, and return its path."""
        log = self.state / f"{service}.log"
        result = self._query(*self.command("logs", "--no-color", "--no-log-prefix", "--tail", "1000", service))
        log.write_text(result.stdout)
        return log

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `docker compose` for this project."""
        return ["docker", "compose", "--project-name", self.project, "--file", str(FILE), *arguments]

    def environment(self) -> dict[str, str]:
        """Return the variables that the file reads; the user's own images and ports are kept."""
        variables = {
            "GRANTWIRE_POSTGRES_PASSWORD": self.password,
            "GRANTWIRE_API_PORT": str(self.api_port),
            "GRANTWIRE_NATS_CONFIG": str(self.nats_users.file),
        }
        if self.is_licensed:
            variables["LOCALSTACK_IMAGE"] = os.environ.get("LOCALSTACK_IMAGE") or LICENSED_IMAGE
        scheme, _, path = os.environ.get("DOCKER_HOST", "").partition("://")
        if scheme == "unix":
            variables["GRANTWIRE_DOCKER_SOCKET"] = path
        return {**os.environ, **variables}

    @property
    def _record_file(self) -> Path:
        return self.state / "compose.json"

    def _record(self) -> dict[str, Any]:
        """Return the settings that must be the same at the next start; choose them at the first one."""
        if not self._record_file.exists():
            self._save_record({"password": secrets.token_hex(16), "api_port": DEFAULT_API_PORT})
        return files.read_record(self._record_file)

    def _save_record(self, record: dict[str, Any]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        files.write_record(self._record_file, record)

    def _run(self, action: str, *options: str, hint: str = "") -> None:
        command = self.command(action, *options)
        launch = Launch(command=command, environment=self.environment(), log=self.log, directory=self.state)
        programs.run(launch, record=self.state / "tool.json", problem=f"docker compose {action} failed.", hint=hint)

    def _query(self, *command: str) -> subprocess.CompletedProcess[str]:
        if shutil.which(command[0]) is None:
            return subprocess.CompletedProcess(command, 127, "", "")
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
