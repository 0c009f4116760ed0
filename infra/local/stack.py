"""The whole stack of one state folder: its servers, its database and the deployed template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.local import database
from infra.local.backing import Backing
from infra.local.clients import TOKEN_ENVIRONMENT
from infra.local.deployed import DeployedStack
from infra.local.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.emulator import EmulatorServer
    from infra.local.postgres import PostgresServer
    from infra.local.progress import Progress


class Stack(Backing, DeployedStack):
    """PostgreSQL, NATS and the emulator with the deployed template.

    Any number of stacks run side by side, each in a folder of its own: the checkout's is `.grantwire`, tests
    use others. Template parameters and PostgreSQL settings given here are added to the usual ones.
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
        """The address of NATS."""
        return self.nats.url

    def _make_deployment(self) -> Deployment:
        given = {
            "DatabaseUrl": database.for_functions(self.database_url, self.cluster),
            "MigrationDatabaseUrl": self.database_url,
            "NatsUrl": self.nats_url,
            "Stage": "local",
            "InboxEnabled": "true",
            "TokenEnvironment": TOKEN_ENVIRONMENT,
        }
        return Deployment(self.state / "deployment", self.emulator, {**given, **self._parameters})
