"""The stack on LocalStack: LocalStack with the deployed template, PostgreSQL and NATS, all in containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.containers.compose import Compose
from infra.local.containers.localstack import Container, LocalStack, Nats, Postgres
from infra.local.deployment.sam import Deployment, Limits
from infra.local.paths import DESCRIPTION
from infra.local.servers.nats_users import TOPOLOGY, WORKERS, Names
from infra.local.stack import database
from infra.local.stack.deployed import DeployedStack

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.progress import Progress


class LocalStackStack(DeployedStack):
    """LocalStack with the deployed template, PostgreSQL and NATS."""

    kind = "localstack"

    def __init__(self, state: Path, *, progress: Progress) -> None:
        self.state = state.absolute() / "localstack"
        self.progress = progress
        self.compose = Compose(self.state)
        self._postgres = Postgres(self.compose, "postgres", 5432)
        self._nats = Nats(self.compose, "nats", 4222)
        self._localstack = LocalStack(self.compose, "localstack", self.compose.api_port)

    @property
    def servers(self) -> tuple[Container, ...]:
        """The containers in the order in which `make status` shows them."""
        return (self._postgres, self._nats, self._localstack)

    @property
    def cluster(self) -> Postgres:
        """PostgreSQL."""
        return self._postgres

    @property
    def aws(self) -> LocalStack:
        """LocalStack."""
        return self._localstack

    @property
    def nats_url(self) -> str:
        """The address of NATS on this machine, for the workers."""
        return self._nats.url_for(WORKERS)

    @property
    def nats_monitoring_url(self) -> str:
        """The address of the monitoring endpoint of NATS on this machine."""
        return self._nats.monitoring_url

    @property
    def nats_topology_url(self) -> str:
        """The address of NATS on this machine, for configure_streams."""
        return self._nats.url_for(TOPOLOGY)

    @property
    def nats_reader_url(self) -> str:
        """The address of NATS on this machine, for a system that reads events."""
        return self._nats.url_for(Names().readers[0])

    @property
    def description(self) -> Path:
        """The file with the stack's addresses; the embedded stack of the checkout writes the same file."""
        return self.state.parent / DESCRIPTION

    def start(self) -> None:
        """Start the containers and wait until they are healthy.

        Raises CommandError if Docker is missing or a container does not become healthy.
        """
        self.compose.check_available()
        with self.progress.step("Starting LocalStack, PostgreSQL and NATS (the first time pulls their images)"):
            self.compose.up()

    def _make_deployment(self) -> Deployment:
        """Return the deployment, with addresses of the containers' network and layers only if licensed."""
        password = database.role_password(self._postgres, database.DATABASE_NAME)
        owner = self._postgres.internal_url(database.DATABASE_NAME, database.DATABASE_NAME, password)
        nats_urls = (self._nats.internal_url_for(user) for user in (WORKERS, TOPOLOGY))
        parameters = self._parameters_for(owner, *nats_urls)
        parameters["GatewayAuthenticates"] = "true" if self.compose.is_licensed else "false"
        folder = self.state / "deployment"
        limits = Limits(ignores_layers=not self.compose.is_licensed, has_old_sam=True, runs_containers=True)
        return Deployment(folder, self._localstack, parameters, limits=limits)
