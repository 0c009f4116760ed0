"""The stack on LocalStack: the template deployed to it, PostgreSQL and NATS beside it, all in containers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from botocore.exceptions import BotoCoreError, ClientError

from infra.local import aws, database
from infra.local.clients import TOKEN_ENVIRONMENT
from infra.local.compose import Compose
from infra.local.deployed import DeployedStack
from infra.local.deployment import Deployment
from infra.local.errors import LocalStackError
from infra.local.servers import HOST

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from infra.local.progress import Progress

USABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE")


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
        return self._url(database, user, HOST, self.port)

    def inner_url(self, database: str, user: str) -> str:
        """Give the address of a database for a function."""
        return self._url(database, user, self.name, self.inside)

    def _url(self, database: str, user: str, host: str, port: int) -> str:
        return f"postgresql://{quote(user, safe='')}:{quote(self.password, safe='')}@{host}:{port}/{database}"


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
        return f"{self.url}/_aws/execute-api/{api}/{stage}"

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Give a CloudFormation stack's outputs; none if there is no such stack, or not in a usable state."""
        try:
            (found,) = self._client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        except (BotoCoreError, ClientError):
            return {}
        outputs = found.get("Outputs", []) if found["StackStatus"].endswith(USABLE) else []
        return {one["OutputKey"]: one["OutputValue"] for one in outputs}

    def make_bucket(self, name: str) -> None:
        """Make a bucket, or leave it as it is."""
        self._client("s3").create_bucket(Bucket=name)

    def invoke_later(self, function: str) -> None:
        """Invoke a function without waiting for its end."""
        try:
            self._client("lambda").invoke(FunctionName=function, InvocationType="Event", Payload=b"{}")
        except (BotoCoreError, ClientError) as error:
            raise LocalStackError(f"{function} cannot be started: {error}", log=self.log) from error

    def reset(self) -> None:
        """Start again with nothing deployed: it keeps nothing over a restart."""
        self._compose.restart(self.name)

    def _client(self, service: str) -> Any:
        return aws.client(service, self.url)


class LocalStackStack(DeployedStack):
    """LocalStack with the deployed template, PostgreSQL and NATS."""

    kind = "localstack"

    def __init__(self, state: Path, *, progress: Progress) -> None:
        self.state = state.absolute() / "localstack"
        self.progress = progress
        self.compose = Compose(self.state)
        self._postgres = Postgres(self.compose, "postgres", 5432)
        self._nats = Container(self.compose, "nats", 4222)
        self._localstack = LocalStack(self.compose, "localstack", self.compose.api_port)

    @property
    def servers(self) -> tuple[Container, ...]:
        """The servers."""
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
        """The address of NATS on this machine."""
        return f"nats://{HOST}:{self._nats.port}"

    @property
    def description(self) -> Path:
        """The file that tells scripts where everything is: the same as for any other stack of the checkout."""
        return self.state.parent / "stack.json"

    @property
    def authorizes(self) -> bool:
        """Only with a licence: the community image accepts authorizers and does not run them."""
        return self.compose.licensed

    def start(self) -> None:
        """Start the containers and wait until they are healthy."""
        self.compose.check()
        with self.progress.step("Starting LocalStack, PostgreSQL and NATS (the first time pulls their images)"):
            self.compose.up()

    def _make_deployment(self) -> Deployment:
        """What differs from the embedded stack: the functions' addresses, and layers only with a licence."""
        owner = self._postgres.inner_url(database.NAME, database.NAME)
        given = {
            "DatabaseUrl": database.for_functions(owner, self._postgres),
            "MigrationDatabaseUrl": owner,
            "NatsUrl": f"nats://{self._nats.name}:{self._nats.inside}",
            "Stage": "local",
            "InboxEnabled": "true",
            "TokenEnvironment": TOKEN_ENVIRONMENT,
        }
        folder = self.state / "deployment"
        return Deployment(folder, self._localstack, given, layers=self.compose.licensed, on_host=False)
