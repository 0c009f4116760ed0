"""What all local stacks have in common, wherever their servers run: the deployed template, from build to health."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from infra.local.deployment.sam import STACK_NAME, Aws, Deployment
from infra.local.errors import CommandError
from infra.local.servers.group import TITLES
from infra.local.stack import database
from infra.local.stack.development_client import TOKEN_ENVIRONMENT, development_token
from infra.local.system import files
from infra.local.system.locks import exclusive

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.progress import Progress

HEALTH = "/v1/users/healthcheck/entitlements"
HEALTHY_WITHIN = 60.0
UNAUTHORIZED = (
    "  This AWS runs no authorizers, so the API lets nobody in (401); everything else works. See docs/local.md."
)
WORKERS = ("relay-outbox", "bridge-events", "deliver-notifications", "record-advisories", "sweep-retention")


class Service(Protocol):
    """A server of the stack, as `make status` shows it."""

    @property
    def name(self) -> str:
        """Which one."""

    @property
    def port(self) -> int:
        """Where it listens on this machine."""

    @property
    def pid(self) -> int | None:
        """Its process, if it is one of ours."""

    def alive(self) -> bool:
        """Tell whether it runs."""


class DatabaseService(Service, database.Cluster, Protocol):
    """PostgreSQL."""


class AwsService(Service, Aws, Protocol):
    """The local AWS."""

    @property
    def log(self) -> Path:
        """What it wrote."""

    def api_url(self, api: str, stage: str) -> str:
        """Give the address of a REST API that was deployed here."""

    def invoke_later(self, function: str) -> None:
        """Invoke a function without waiting for its end."""


class DeployedStack(ABC):
    """The template on a local AWS, with its database, ready to answer."""

    kind: str
    state: Path
    progress: Progress

    @property
    @abstractmethod
    def servers(self) -> tuple[Service, ...]:
        """The servers in the order in which they start."""

    @property
    @abstractmethod
    def cluster(self) -> DatabaseService:
        """PostgreSQL."""

    @property
    @abstractmethod
    def aws(self) -> AwsService:
        """The local AWS."""

    @property
    @abstractmethod
    def nats_url(self) -> str:
        """The address of NATS."""

    @property
    @abstractmethod
    def description(self) -> Path:
        """The file that tells scripts where everything is."""

    @abstractmethod
    def start(self) -> None:
        """Start what does not run."""

    @abstractmethod
    def _make_deployment(self) -> Deployment: ...

    @cached_property
    def deployment(self) -> Deployment:
        """The template on this stack's AWS; valid once the servers have their ports."""
        return self._make_deployment()

    @property
    def database_url(self) -> str:
        """The address of the product's database."""
        return database.url(self.cluster)

    @property
    def emulator_url(self) -> str:
        """The address of the local AWS."""
        return self.aws.url

    @property
    def api_url(self) -> str:
        """The address of the deployed API."""
        outputs = self.deployment.outputs()
        if "ApiId" not in outputs:
            raise CommandError("The stack is not deployed.", hint="Start it with `make up`.")
        return self.aws.api_url(outputs["ApiId"], outputs["ApiStage"])

    def up(self) -> None:
        """Start what does not run, deploy what has changed, and return when the API answers."""
        with exclusive(self.state / "stack.lock", self.progress):
            self.start()
            with self.progress.step("Migrating the database"):
                database.create(self.cluster)
                database.migrate(self.cluster, self.state / "migrations")
            self._deploy()
            with self.progress.step("Making sure of the development client"):
                development_token(self.database_url, self._token_file)
            with self.progress.step("Waiting for the API"):
                self._await_healthy()
            self._start_workers()
            self._describe()

    def _parameters_for(self, owner_url: str, nats_url: str) -> dict[str, str]:
        """Give the template's parameters of every local stack; the addresses are those that a function sees."""
        return {
            "DatabaseUrl": database.for_functions(owner_url, self.cluster),
            "MigrationDatabaseUrl": owner_url,
            "NatsUrl": nats_url,
            "Stage": "local",
            "InboxEnabled": "true",
            "TokenEnvironment": TOKEN_ENVIRONMENT,
        }

    @property
    def token(self) -> str:
        """The development client's token; none before the first start."""
        return self._token_file.read_text() if self._token_file.exists() else ""

    @property
    def _token_file(self) -> Path:
        return self.state / "token"

    @property
    def authorizes(self) -> bool:
        """Whether this AWS runs authorizers; where it does not, the API lets nobody in."""
        return True

    def healthy(self) -> bool:
        """Tell whether the API answers from the database."""
        return self._status() == HTTPStatus.OK

    def _status(self) -> int | None:
        """Give the API's answer to the development client, if it gives any."""
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            request = urllib.request.Request(self.api_url + HEALTH, headers=headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code
        except (OSError, CommandError):
            return None

    def _deploy(self) -> None:
        if self.deployment.current():
            return
        with self.progress.step("Building the functions"):
            self.deployment.build_functions()
        with self.progress.step(f"Deploying to {TITLES[self.aws.name]}"):
            self.deployment.deploy()

    def _start_workers(self) -> None:
        """Start each worker once: its schedule fires for the first time after a minute."""
        with self.progress.step("Starting the workers"):
            for name in WORKERS:
                self.aws.invoke_later(f"{STACK_NAME}-{name}")

    def _await_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN
        while (status := self._status()) != HTTPStatus.OK:
            if status == HTTPStatus.UNAUTHORIZED and not self.authorizes:
                self.progress.say(UNAUTHORIZED)
                return
            if time.monotonic() > deadline:
                hint = "`make logs` shows what the functions wrote."
                raise CommandError("The API does not answer.", log=self.aws.log, hint=hint)
            time.sleep(0.5)

    def _describe(self) -> None:
        """Write down what scripts need, for the owner's eyes only."""
        description: dict[str, Any] = {
            "stack": self.kind,
            "api_url": self.api_url,
            "database_url": self.database_url,
            "nats_url": self.nats_url,
            "emulator_url": self.emulator_url,
            "token": self.token,
            "pids": {server.name: server.pid for server in self.servers if server.pid},
        }
        files.write_record(self.description, description)
