"""The embedded stack: servers as processes of this machine, with the deployed template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local.deployment.sam import Deployment, Limits
from infra.local.servers.group import ServerGroup
from infra.local.stack.deployed import DeployedStack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.progress import Progress
    from infra.local.servers.emulator import EmulatorServer
    from infra.local.servers.postgres import PostgresServer


class EmbeddedStack(ServerGroup, DeployedStack):
    """PostgreSQL, NATS and the emulator with the deployed template.

    Any number of stacks can run at the same time, each in its own folder: the checkout's is in `.grantwire`, tests use
    others. `parameters` of the template and `database_settings` override the defaults.
    """

    kind = "embedded"

    def __init__(
        self,
        state: Path,
        *,
        progress: Progress | None = None,
        parameters: Mapping[str, str] | None = None,
        database_settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(state, progress=progress, database_settings=database_settings)
        self._parameters = dict(parameters or {})

    @property
    def cluster(self) -> PostgresServer:
        """PostgreSQL."""
        return self.postgres

    @property
    def aws(self) -> EmulatorServer:
        """The local AWS."""
        return self.emulator

    @property
    def nats_url(self) -> str:
        """The address of NATS for the workers."""
        return self.nats.url

    @property
    def nats_monitoring_url(self) -> str:
        """The address of the monitoring endpoint of NATS."""
        return self.nats.monitoring_url

    @property
    def nats_topology_url(self) -> str:
        """The address of NATS for configure_streams."""
        return self.nats.topology_url

    @property
    def nats_reader_url(self) -> str:
        """The address of NATS for a system that reads events."""
        return self.nats.reader_url

    def _make_deployment(self) -> Deployment:
        # The emulator decodes the whole path before it routes a request.
        defaults = self._parameters_for(self.database_url, self.nats_url, self.nats_topology_url)
        parameters = {**defaults, "GatewayDecodesPath": "true", **self._parameters}
        limits = Limits(incomplete_gateway=self.emulator)
        return Deployment(self.state / "deployment", self.emulator, parameters, limits=limits)
