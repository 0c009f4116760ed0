"""The base class of local stacks: build, deploy and check the template, independent of where the servers run."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from infra.local.deployment.sam import STACK_NAME, Deployment, LocalAws, check_make
from infra.local.errors import CommandError
from infra.local.servers.group import TITLES
from infra.local.servers.nats_users import Names
from infra.local.stack import database, webhook
from infra.local.stack.description import running_kind
from infra.local.stack.development_client import TOKEN_ENVIRONMENT, development_token
from infra.local.stack.streams import configure_streams
from infra.local.system import files
from infra.local.system.locks import hold_lock, stack_lock
from infra.local.system.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.progress import Progress

HEALTH_PATH = "/v1/users/healthcheck/entitlements"
STATUS_PATH = "/v1/ops/status"
HEALTH_TIMEOUT_SECONDS = 60.0
WARM_UP_TIMEOUT_SECONDS = 30.0
WORKERS_TIMEOUT_SECONDS = 60.0
WORKERS = (
    "relay-outbox",
    "bridge-events",
    "deliver-notifications",
    "record-advisories",
    "run-operator-commands",
    "expire-entitlements",
    "sweep-retention",
)


class Service(Protocol):
    """A server of the stack, as `make status` shows it."""

    @property
    def name(self) -> str:
        """The server's name, a key of TITLES."""

    @property
    def port(self) -> int:
        """The server's port on this machine."""

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it runs in a container."""

    def is_alive(self) -> bool:
        """Return whether the server runs."""


class DatabaseService(Service, database.Cluster, Protocol):
    """PostgreSQL."""


class AwsService(Service, LocalAws, Protocol):
    """The local AWS."""

    @property
    def log(self) -> Path:
        """The log of the local AWS."""

    def api_url(self, api: str, stage: str) -> str:
        """Return the address of a REST API that is deployed here."""

    def invoke_async(self, function: str) -> None:
        """Invoke a function without waiting for its result."""


class DeployedStack(ABC):
    """The template deployed to a local AWS, with its database."""

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
        """The address of NATS for the workers."""

    @property
    @abstractmethod
    def nats_monitoring_url(self) -> str:
        """The address of the monitoring endpoint of NATS; empty if there is none."""

    @property
    @abstractmethod
    def nats_topology_url(self) -> str:
        """The address of NATS for configure_streams."""

    @property
    @abstractmethod
    def nats_reader_url(self) -> str:
        """The address of NATS for a system that reads events."""

    @property
    @abstractmethod
    def description(self) -> Path:
        """The file with the stack's addresses, for scripts."""

    @abstractmethod
    def start(self) -> None:
        """Start the servers that do not run."""

    @abstractmethod
    def _make_deployment(self) -> Deployment: ...

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment to this stack's AWS; use it only after the servers have their ports."""
        return self._make_deployment()

    @property
    def database_url(self) -> str:
        """The address of the product's database for its owner."""
        return database.owner_url(self.cluster)

    @property
    def clients_database_url(self) -> str:
        """The same address for the administration of clients."""
        return database.clients_url(self.database_url, self.cluster)

    @property
    def emulator_url(self) -> str:
        """The address of the local AWS."""
        return self.aws.url

    @property
    def api_url(self) -> str:
        """The address of the deployed API; CommandError if the stack is not deployed."""
        outputs = self.deployment.outputs()
        if "ApiId" not in outputs:
            raise CommandError("The stack is not deployed.", hint="Start it with `make up`.")
        return self.aws.api_url(outputs["ApiId"], outputs["ApiStage"])

    def up(self) -> None:
        """Start the servers, migrate, configure the streams, deploy changes, and return when the API responds.

        Raises CommandError if the checkout's other stack is up or a tool is missing, or, with the log of the failed
        step, if this one does not come up.
        """
        check_make()
        with hold_lock(stack_lock(self.description.parent), self.progress):
            self._check_other_stack()
            self.start()
            with self.progress.step("Migrating the database"):
                database.create(self.cluster)
                database.migrate(self.cluster, self.state / "migrations")
            with self.progress.step("Configuring the streams"):
                configure_streams(self.nats_topology_url, self.deployment.parameters)
            self._deploy()
            with self.progress.step("Checking the development client"):
                development_token(self.clients_database_url, self._token_file)
            with self.progress.step("Waiting for the API"):
                self._wait_until_healthy()
                self._request(STATUS_PATH, WARM_UP_TIMEOUT_SECONDS)  # its first call is slow
            self._start_workers()
            self._write_description()

    def _check_other_stack(self) -> None:
        running = running_kind(self.description.parent)
        if running not in {None, self.kind}:
            raise CommandError(f"The checkout's {running} stack is up.", hint="Stop it first with `make down`.")

    def _parameters_for(self, owner_url: str, nats_url: str, nats_topology_url: str) -> dict[str, str]:
        """Return the template parameters of every local stack, with the addresses that a function uses."""
        return {
            "DatabaseUrl": database.functions_url(owner_url, self.cluster),
            "ClientsDatabaseUrl": database.clients_url(owner_url, self.cluster),
            "MigrationDatabaseUrl": owner_url,
            "NatsUrl": nats_url,
            "TopologyNatsUrl": nats_topology_url,
            "ReaderConsumers": ",".join(Names().readers),
            "Stage": "local",
            "InboxEnabled": "true",
            "TokenEnvironment": TOKEN_ENVIRONMENT,
            **webhook.parameters(self.state),
        }

    @property
    def token(self) -> str:
        """The development client's token; empty before the first start."""
        return self._token_file.read_text() if self._token_file.exists() else ""

    @property
    def _token_file(self) -> Path:
        return self.state / "token"

    def is_healthy(self) -> bool:
        """Return whether the API responds with data from the database."""
        return self._request() == HTTPStatus.OK

    def _request(self, path: str = HEALTH_PATH, timeout: float = 10.0) -> int | None:
        """Return the status of the API's response to the development client, or None without a response."""
        try:
            with self._open(path, timeout) as response:
                return int(response.status)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code
        except (OSError, CommandError):
            return None

    def _open(self, path: str, timeout: float) -> Any:
        """Send a request as the development client, and return the response."""
        request = urllib.request.Request(self.api_url + path, headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310
        return urllib.request.urlopen(request, timeout=timeout)  # noqa: S310

    def _deploy(self) -> None:
        if self.deployment.is_current():
            return
        with self.progress.step("Building the functions"):
            self.deployment.build_functions()
        with self.progress.step(f"Deploying to {TITLES[self.aws.name]}"):
            self.deployment.deploy()
        for changed in self.state.glob(f"{STACK_NAME}-*.json"):  # a fault of a function, which is deployed anew
            changed.unlink()

    def _start_workers(self) -> None:
        """Start each worker once, because its schedule first fires after a minute."""
        with self.progress.step("Starting the workers"):
            for name in WORKERS:
                self.aws.invoke_async(f"{STACK_NAME}-{name}")
            # Otherwise the first status says that they are late. It is no failure: the status says why.
            wait_until(self._workers_run, WORKERS_TIMEOUT_SECONDS, every=0.5)

    def _workers_run(self) -> bool:
        try:
            with self._open(STATUS_PATH, WARM_UP_TIMEOUT_SECONDS) as response:
                problems = json.load(response)["problems"]
        except (OSError, CommandError, ValueError):
            return False
        return all(problem["code"] != "WORKER_LATE" for problem in problems)

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + HEALTH_TIMEOUT_SECONDS
        while self._request() != HTTPStatus.OK:
            if time.monotonic() > deadline:
                hint = "See the functions' logs with `make logs`."
                problem = f"The API did not respond with 200 within {HEALTH_TIMEOUT_SECONDS:.0f} s."
                raise CommandError(problem, log=self.aws.log, hint=hint)
            time.sleep(0.5)

    def _write_description(self) -> None:
        """Write the stack's addresses and token to stack.json, readable by the owner only."""
        description: dict[str, Any] = {
            "stack": self.kind,
            "api_url": self.api_url,
            "database_url": self.database_url,
            "clients_database_url": self.clients_database_url,
            "nats_url": self.nats_url,
            "nats_reader_url": self.nats_reader_url,
            "emulator_url": self.emulator_url,
            "access_key_id": self.aws.access_key,
            "token": self.token,
            "pids": {server.name: server.pid for server in self.servers if server.pid},
        }
        files.write_record(self.description, description)
