"""The containers of infra/compose.yaml, through `docker compose`. Standard library only: `make down` needs it."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING

from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT
from infra.local.system import files, programs
from infra.local.system.processes import Launch

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

FILE = CHECKOUT / "infra" / "compose.yaml"
LICENSED_IMAGE = "localstack/localstack:2026.08.3"
API_PORT = 4566
HEALTHY_WITHIN = 300  # seconds, the pull not counted
INSTALL = "Docker with its compose plugin is needed: https://docs.docker.com/compose/install/"
PULL = "Could the images be pulled, and is no port taken? GRANTWIRE_API_PORT=… moves LocalStack's from 4566."


class Compose:
    """One checkout's containers; two checkouts have two projects."""

    def __init__(self, state: Path) -> None:
        self.state = state.absolute()
        self.log = self.state / "compose.log"
        self.project = f"grantwire-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    @property
    def licensed(self) -> bool:
        """Whether there is a token for LocalStack's licensed image."""
        return bool(os.environ.get("LOCALSTACK_AUTH_TOKEN"))

    @property
    def password(self) -> str:
        """The PostgreSQL superuser's password, chosen at the first start."""
        return str(self._record()["password"])

    @property
    def api_port(self) -> int:
        """LocalStack's port, inside and outside: the one asked for, else the last one, else its usual one."""
        value = os.environ.get("GRANTWIRE_API_PORT") or self._record()["api_port"]
        if not str(value).isdigit():
            raise CommandError(f"GRANTWIRE_API_PORT={value} is not a port.")
        return int(value)

    def used(self) -> bool:
        """Tell whether there may be volumes."""
        return self._file.exists()

    def started(self) -> bool:
        """Tell whether there may be containers."""
        return self.used() and bool(self._record().get("up"))

    def check(self) -> None:
        """Say what is missing before anything is tried."""
        if self._ask("docker", "compose", "version").returncode:
            raise CommandError("There is no `docker compose`.", hint=INSTALL)
        if self._ask("docker", "version").returncode:
            raise CommandError("The Docker engine does not answer.", hint="Start it, or set DOCKER_HOST.")

    def up(self) -> None:
        """Start what does not run and wait until all of it is healthy."""
        self._remember(self._record() | {"api_port": self.api_port, "up": True})
        self._run("up", "--detach", "--wait", "--wait-timeout", str(HEALTHY_WITHIN), hint=PULL)

    def restart(self, service: str) -> None:
        """Stop and start one service, and wait until it is healthy."""
        self._run("restart", service)
        self.up()

    def down(self, *, volumes: bool = False) -> None:
        """Remove the containers; the data stay unless their volumes are to go too."""
        self._run("down", "--remove-orphans", *(["--volumes"] if volumes else []))
        self._remember(self._record() | {"up": False})

    def running(self) -> set[str]:
        """Name the services that run."""
        answer = self._ask(*self.command("ps", "--services", "--status", "running"))
        return set(answer.stdout.split())

    def port(self, service: str, inside: int) -> int:
        """Give the port of this machine that leads to a service's own; 0 if it does not run."""
        answer = self._ask(*self.command("port", service, str(inside)))
        return int(answer.stdout.strip().rpartition(":")[2] or 0)

    def write_log(self, service: str) -> Path:
        """Write what a service said into a file, and name that."""
        log = self.state / f"{service}.log"
        answer = self._ask(*self.command("logs", "--no-color", "--no-log-prefix", "--tail", "1000", service))
        log.write_text(answer.stdout)
        return log

    def command(self, *words: str) -> list[str]:
        """Give the command line of one action on this project."""
        return ["docker", "compose", "--project-name", self.project, "--file", str(FILE), *words]

    def environment(self) -> dict[str, str]:
        """Give the variables that the file reads; what the person set for images and ports stays."""
        own = {"GRANTWIRE_POSTGRES_PASSWORD": self.password, "GRANTWIRE_API_PORT": str(self.api_port)}
        if self.licensed:
            own["LOCALSTACK_IMAGE"] = os.environ.get("LOCALSTACK_IMAGE") or LICENSED_IMAGE
        scheme, _, path = os.environ.get("DOCKER_HOST", "").partition("://")
        if scheme == "unix":
            own["GRANTWIRE_DOCKER_SOCKET"] = path
        return {**os.environ, **own}

    @property
    def _file(self) -> Path:
        return self.state / "compose.json"

    def _record(self) -> dict[str, Any]:
        """What must be the same at the next start."""
        if not self._file.exists():
            self._remember({"password": secrets.token_hex(16), "api_port": API_PORT})
        return files.read_record(self._file)

    def _remember(self, record: dict[str, Any]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        files.write_record(self._file, record)

    def _run(self, *words: str, hint: str = "") -> None:
        launch = Launch(
            command=self.command(*words), environment=self.environment(), log=self.log, directory=self.state
        )
        programs.run(launch, record=self.state / "tool.json", problem=f"docker compose {words[0]} failed.", hint=hint)

    def _ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        if shutil.which(command[0]) is None:
            return subprocess.CompletedProcess(command, 127, "", "")
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
