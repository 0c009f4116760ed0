"""LocalStack, PostgreSQL and NATS as services of infra/compose.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from infra.local.deployment import aws
from infra.local.errors import CommandError
from infra.local.servers.emulator import DEFAULT_ACCESS_KEY, execute_api_url, is_usable
from infra.local.servers.postgres import postgres_url
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from infra.local.containers.compose import Compose


class Container:
    """A service of the compose file."""

    pid = None

    def __init__(self, compose: Compose, name: str, container_port: int) -> None:
        self.name = name
        self.container_port = container_port
        self._compose = compose

    @property
    def port(self) -> int:
        """The published port on this machine."""
        return self._compose.port(self.name, self.container_port)

    def is_alive(self) -> bool:
        """Return whether the container runs."""
        return self.name in self._compose.running_services()


class Postgres(Container):
    """PostgreSQL, with one address for this machine and another one for the functions."""

    @property
    def state(self) -> Path:
        """The folder for the passwords of the database's roles."""
        return self._compose.state

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """Return the address of a database for a client on this machine; by default for the superuser."""
        secret = self._compose.password if password is None else password
        return postgres_url(user, secret, f"{HOST}:{self.port}", database)

    def internal_url(self, database: str, user: str, password: str) -> str:
        """Return the address of a database for a function in a container."""
        return postgres_url(user, password, f"{self.name}:{self.container_port}", database)


class Nats(Container):
    """NATS, with one address for this machine and another one for the functions."""

    monitoring_port = 8222

    @property
    def monitoring_url(self) -> str:
        """The address of the monitoring endpoint on this machine."""
        return f"http://{HOST}:{self._compose.port(self.name, self.monitoring_port)}"

    def url_for(self, user: str) -> str:
        """Return the address for one user on this machine."""
        return self._compose.nats_users.url(user, f"{HOST}:{self.port}")

    def internal_url_for(self, user: str) -> str:
        """Return the address for one user in a container."""
        return self._compose.nats_users.url(user, f"{self.name}:{self.container_port}")


class LocalStack(Container):
    """LocalStack, called with the AWS SDK."""

    access_key = DEFAULT_ACCESS_KEY

    @property
    def url(self) -> str:
        """The address of the AWS API."""
        return f"http://{HOST}:{self.container_port}"

    @property
    def log(self) -> Path:
        """A file with LocalStack's log so far."""
        return self._compose.write_log(self.name)

    def api_url(self, api: str, stage: str) -> str:
        """Return the address of a REST API that is deployed here."""
        return execute_api_url(self.url, api, stage)

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Return the outputs of a CloudFormation stack; empty if it does not exist or is not usable."""
        try:
            (description,) = self._client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        except (BotoCoreError, ClientError):
            return {}
        outputs = description.get("Outputs", []) if is_usable(description["StackStatus"]) else []
        return {output["OutputKey"]: output["OutputValue"] for output in outputs}

    def create_bucket(self, name: str) -> None:
        """Create a bucket if it does not exist."""
        self._client("s3").create_bucket(Bucket=name)

    def invoke_async(self, function: str) -> None:
        """Invoke a function without waiting for its result."""
        try:
            self._client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")
        except (BotoCoreError, ClientError) as error:
            raise CommandError(f"Invoking {function} failed: {error}", log=self.log) from error

    def reset(self) -> None:
        """Restart LocalStack, which keeps no deployment over a restart."""
        self._compose.restart(self.name)

    def _client(self, service: str) -> Any:
        return aws.client(service, self.url)
