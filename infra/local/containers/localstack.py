"""LocalStack, and PostgreSQL and NATS beside it: services of infra/compose.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from infra.local.deployment import aws
from infra.local.errors import CommandError
from infra.local.servers.emulator import execute_api_url, usable
from infra.local.servers.postgres import postgres_url
from infra.local.system.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from infra.local.containers.compose import Compose


class Container:
    """A service of the compose file."""

    pid = None

    def __init__(self, compose: Compose, name: str, inside: int) -> None:
        self.name = name
        self.inside = inside
        self._compose = compose

    @property
    def port(self) -> int:
        """Where it listens on this machine."""
        return self._compose.port(self.name, self.inside)

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self.name in self._compose.running()


class Postgres(Container):
    """PostgreSQL: one address for this machine, another one for the functions."""

    @property
    def password(self) -> str:
        """The superuser's password."""
        return self._compose.password

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Give the address of a database for a client on this machine."""
        return postgres_url(user, self.password, f"{HOST}:{self.port}", database)

    def inner_url(self, database: str, user: str) -> str:
        """Give the address of a database for a function."""
        return postgres_url(user, self.password, f"{self.name}:{self.inside}", database)


class LocalStack(Container):
    """LocalStack, asked through the SDK."""

    @property
    def url(self) -> str:
        """Where the AWS API answers."""
        return f"http://{HOST}:{self.inside}"

    @property
    def log(self) -> Path:
        """What it wrote until now."""
        return self._compose.write_log(self.name)

    def api_url(self, api: str, stage: str) -> str:
        """Give the address of a REST API that was deployed here."""
        return execute_api_url(self.url, api, stage)

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Give a CloudFormation stack's outputs; none if there is no such stack, or not in a usable state."""
        try:
            (found,) = self._client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        except (BotoCoreError, ClientError):
            return {}
        outputs = found.get("Outputs", []) if usable(found["StackStatus"]) else []
        return {one["OutputKey"]: one["OutputValue"] for one in outputs}

    def make_bucket(self, name: str) -> None:
        """Make a bucket, or leave it as it is."""
        self._client("s3").create_bucket(Bucket=name)

    def invoke_later(self, function: str) -> None:
        """Invoke a function without waiting for its end."""
        try:
            self._client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")
        except (BotoCoreError, ClientError) as error:
            raise CommandError(f"{function} cannot be started: {error}", log=self.log) from error

    def reset(self) -> None:
        """Start again with nothing deployed: it keeps nothing over a restart."""
        self._compose.restart(self.name)

    def _client(self, service: str) -> Any:
        return aws.client(service, self.url)
