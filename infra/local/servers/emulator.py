"""The local AWS: ministack, in an environment and a folder of its own."""

from __future__ import annotations

import shutil
import urllib.request
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from infra.local.errors import CommandError
from infra.local.servers.server import Server
from infra.local.system.ports import HOST
from infra.local.toolchain.environments import EMULATOR

if TYPE_CHECKING:
    from pathlib import Path

    from infra.local.system.processes import Launch

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}

# Listeners of services that nobody here uses; on fixed ports, they would collide between checkouts.
SILENCED = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0"}


def execute_api_url(aws: str, api: str, stage: str) -> str:
    """Give the address of a REST API, as ministack and LocalStack both serve it."""
    return f"{aws}/_aws/execute-api/{api}/{stage}"


def usable(status: str) -> bool:
    """Tell whether a CloudFormation stack of this status serves, and can be deployed to."""
    return status.endswith(("CREATE_COMPLETE", "UPDATE_COMPLETE"))


class EmulatorServer(Server):
    """An AWS emulator that runs functions as processes and keeps what was deployed over a restart."""

    name: ClassVar[str] = "emulator"
    port_variable: ClassVar[str] = "GRANTWIRE_API_PORT"
    ready_within: ClassVar[float] = 60.0

    @property
    def url(self) -> str:
        """Where the AWS API answers."""
        return f"http://{HOST}:{self.port}"

    def api_url(self, api: str, stage: str) -> str:
        """Give the address of a REST API that was deployed here."""
        return execute_api_url(self.url, api, stage)

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Give a CloudFormation stack's outputs; none if there is no such stack, or not in a usable state.

        Asked without an SDK, which takes a second to import: every `make up` waits for this answer.
        """
        question = {"Action": "DescribeStacks", "Version": "2010-05-15", "StackName": stack}
        request = self._request("cloudformation", "/", data=urlencode(question).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                found = ET.fromstring(answer.read())  # noqa: S314  # from our own server
        except (OSError, ET.ParseError):
            return {}
        if not usable(found.findtext(".//{*}StackStatus", "")):
            return {}
        outputs = found.iterfind(".//{*}Outputs/{*}member")
        return {one.findtext("{*}OutputKey", ""): one.findtext("{*}OutputValue", "") for one in outputs}

    def make_bucket(self, name: str) -> None:
        """Make a bucket, or leave it as it is."""
        with urllib.request.urlopen(self._request("s3", f"/{name}", method="PUT"), timeout=10):  # noqa: S310
            pass

    def invoke_later(self, function: str) -> None:
        """Invoke a function without waiting for its end."""
        request = self._request("lambda", f"/2015-03-31/functions/{function}/invocations", data=b"{}")
        request.add_header("X-Amz-Invocation-Type", "Event")
        try:
            urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        except OSError as error:
            raise CommandError(f"{function} cannot be started: {error}", log=self.log) from error

    def reset(self) -> None:
        """Start again with nothing deployed."""
        self.stop()
        self._saved.unlink(missing_ok=True)
        self.start()

    @property
    def _saved(self) -> Path:
        return self.state / "saved"

    def _prepare(self) -> None:
        """Go on from what the last one saved; it does so only at an orderly end, so forget anything older."""
        if not self._saved.exists():
            for name in ("state", "s3"):
                shutil.rmtree(self.state / name, ignore_errors=True)
        self._saved.unlink(missing_ok=True)
        self.state.chmod(0o700)  # it keeps the functions' environments, with the passwords in them

    def _ended(self, *, properly: bool) -> None:
        """Remember whether the state on disk is the last one."""
        if properly:
            self._saved.touch()

    def _request(
        self, service: str, path: str, *, method: str | None = None, data: bytes | None = None
    ) -> urllib.request.Request:
        """Make a request that names its service as a signed one does; the emulator checks no signature."""
        scope = f"{CREDENTIALS['AWS_ACCESS_KEY_ID']}/20260101/{REGION}/{service}/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}
        return urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310

    def _command(self, port: int) -> Launch:
        program = EMULATOR.folder / "bin" / "ministack"
        return self._program(EMULATOR.python, program, environment={**self._settings(port), **SILENCED})

    def _settings(self, port: int) -> dict[str, str]:
        """Workers inherit these: a home of its own keeps the person's AWS profile away from the functions."""
        return {
            "BIND_HOST": HOST,
            "GATEWAY_PORT": str(port),
            "HOME": str(self.state),
            "MINISTACK_REGION": REGION,
            "PERSIST_STATE": "1",
            "S3_DATA_DIR": str(self.state / "s3"),
            "S3_PERSIST": "1",
            "STATE_DIR": str(self.state / "state"),
        }

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=2) as answer:  # noqa: S310
                return bool(answer.status == 200)  # noqa: PLR2004
        except OSError:
            return False
