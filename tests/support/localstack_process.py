"""LocalStack 4.14.0 as a process of this machine, installed from the package index without an image or an account.

It has no engine for containers and no runtimes, so it creates everything but working functions.
"""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from infra.local.deployment import aws
from infra.local.errors import CommandError
from infra.local.progress import Progress
from infra.local.servers.emulator import DEFAULT_ACCESS_KEY
from infra.local.servers.server import Server
from infra.local.system.ports import HOST
from infra.local.toolchain import environments
from tests.support.environments import find_python

if TYPE_CHECKING:
    from infra.local.system.processes import Launch

PYTHON = "3.13"  # that of its image: it does not run on 3.11, and on 3.14 its dependencies exclude each other


def install() -> None:
    """Install LocalStack; raise CommandError if this machine has no Python for it, or with the log if that fails."""
    python = find_python(PYTHON)
    if python is None:
        raise CommandError(f"there is no Python {PYTHON}.", hint="Its maker runs it on this version only.")
    environments.ensure_further(replace(environments.LOCALSTACK, interpreter=python), Progress())


class LocalStackProcess(Server):
    """LocalStack, as the local AWS of a deployment."""

    name: ClassVar[str] = "localstack"
    port_variable: ClassVar[str] = "GRANTWIRE_API_PORT"
    ready_timeout: ClassVar[float] = 120.0
    access_key = DEFAULT_ACCESS_KEY

    @property
    def url(self) -> str:
        """The address of the AWS API."""
        return f"http://{HOST}:{self.port}"

    def client(self, service: str) -> Any:
        """Return a client for a service."""
        return aws.client(service, self.url)

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Return no outputs: no deployment is completed here."""
        return dict.fromkeys((), stack)

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        self.client("s3").create_bucket(Bucket=name)

    def reset(self) -> None:
        """Restart it, which forgets what was deployed."""
        self.restart()

    def _command(self, port: int) -> Launch:
        settings = {
            "DISABLE_EVENTS": "1",  # no reports to its maker
            "DNS_ADDRESS": "0",
            "FILESYSTEM_ROOT": str(self.state / "files"),
            "GATEWAY_LISTEN": f"{HOST}:{port}",
            "HOME": str(self.state),
            "OVERRIDE_IN_DOCKER": "0",  # in a container it would write to /var/lib/localstack
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }
        python = environments.LOCALSTACK.python
        return self._program(python, "-P", "-m", "localstack.runtime.main", environment=settings)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_localstack/health", timeout=5) as response:  # noqa: S310
                return bool(response.status == 200)
        except OSError:
            return False
