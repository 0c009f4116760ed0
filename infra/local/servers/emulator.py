"""The local AWS: ministack, in its own virtual environment and state folder, behind `front.py`."""

from __future__ import annotations

import json
import secrets
import shutil
import urllib.request
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from infra.local.errors import CommandError
from infra.local.servers import front
from infra.local.servers.server import Server
from infra.local.system import files
from infra.local.system.ports import HOST
from infra.local.toolchain.environments import EMULATOR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.local.system.processes import Launch

REGION = "us-east-1"
DEFAULT_ACCESS_KEY = "local"  # for LocalStack, which accepts any, and for tools that must reach no AWS
SECRET_KEY = "local"  # noqa: S105  # no local AWS checks signatures

# Listeners of unused services. They have fixed ports, which would collide between checkouts.
DISABLED_LISTENERS = {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0"}


def credentials(access_key: str = DEFAULT_ACCESS_KEY) -> dict[str, str]:
    """Return the variables with which AWS tools send this access key."""
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def execute_api_url(aws: str, api: str, stage: str) -> str:
    """Return the address of a REST API; ministack and LocalStack use the same form."""
    return f"{aws}/_aws/execute-api/{api}/{stage}"


def is_usable(status: str) -> bool:
    """Return whether a CloudFormation stack with this status works and can be deployed to."""
    return status.endswith(("CREATE_COMPLETE", "UPDATE_COMPLETE"))


class EmulatorServer(Server):
    """An AWS emulator that runs functions as processes and keeps deployments over a restart."""

    name: ClassVar[str] = "emulator"
    port_variable: ClassVar[str] = "GRANTWIRE_API_PORT"
    ready_timeout: ClassVar[float] = 60.0

    @property
    def access_key(self) -> str:
        """The random access key id, without which the emulator serves nothing but deployed APIs."""
        file = self.state / "access-key"
        if not file.exists():
            self._make_folder()
            files.write_private(file, secrets.token_hex(16))
        return file.read_text()

    @property
    def url(self) -> str:
        """The address of the AWS API."""
        return f"http://{HOST}:{self.port}"

    def api_url(self, api: str, stage: str) -> str:
        """Return the address of a REST API that is deployed here."""
        return execute_api_url(self.url, api, stage)

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Return the outputs of a CloudFormation stack; empty if it does not exist or is not usable.

        Does not use the SDK, which takes a second to import: every `make up` waits for this request.
        """
        query = {"Action": "DescribeStacks", "Version": "2010-05-15", "StackName": stack}
        request = self._request("cloudformation", "/", data=urlencode(query).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                document = ET.fromstring(response.read())  # noqa: S314  # from our own server
        except (OSError, ET.ParseError):
            return {}
        if not is_usable(document.findtext(".//{*}StackStatus", "")):
            return {}
        outputs = document.iterfind(".//{*}Outputs/{*}member")
        return {output.findtext("{*}OutputKey", ""): output.findtext("{*}OutputValue", "") for output in outputs}

    def create_bucket(self, name: str) -> None:
        """Create a bucket if it does not exist."""
        with urllib.request.urlopen(self._request("s3", f"/{name}", method="PUT"), timeout=10):  # noqa: S310
            pass

    def invoke_async(self, function: str) -> None:
        """Invoke a function without waiting for its result."""
        request = self._request("lambda", f"/2015-03-31/functions/{function}/invocations", data=b"{}")
        request.add_header("X-Amz-Invocation-Type", "Event")
        try:
            urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        except OSError as error:
            raise CommandError(f"Invoking {function} failed: {error}", log=self.log) from error

    def api_gateway(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request below `/restapis` to API Gateway and return the response.

        Raises CommandError if it is refused. Does not use the SDK, like `stack_outputs`.
        """
        data = None if body is None else json.dumps(body).encode()
        request = self._request("apigateway", f"/restapis{path}", method=method, data=data)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
        except OSError as error:
            raise CommandError(f"API Gateway refused {method} {path}: {error}", log=self.log) from error
        return answer

    def reset(self) -> None:
        """Restart with nothing deployed."""
        self.stop()
        self._state_saved.unlink(missing_ok=True)
        self.start()

    @property
    def _state_saved(self) -> Path:
        """The file that marks the state on disk as complete."""
        return self.state / "saved"

    def _prepare(self) -> None:
        """Delete incomplete state: the emulator saves its state only when it stops cleanly."""
        if not self._state_saved.exists():
            for name in ("state", "s3"):
                shutil.rmtree(self.state / name, ignore_errors=True)
        self._state_saved.unlink(missing_ok=True)

    def _on_stopped(self, *, cleanly: bool) -> None:
        """Mark the state on disk as complete if the emulator stopped cleanly."""
        if cleanly:
            self._state_saved.touch()

    def _request(
        self, service: str, path: str, *, method: str | None = None, data: bytes | None = None
    ) -> urllib.request.Request:
        """Return a request with key and service as in a signed one; the emulator checks no signature."""
        scope = f"{self.access_key}/20260101/{REGION}/{service}/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"}
        return urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310

    def _command(self, port: int) -> Launch:
        # -P: the folder of the program does not become part of Python's path.
        settings: Mapping[str, str] = {**self._settings(port), **DISABLED_LISTENERS}
        return self._program(EMULATOR.python, "-P", front.__file__, environment=settings)

    def _settings(self, port: int) -> dict[str, str]:
        """Return the emulator's variables, which functions inherit.

        HOME is the state folder, so that functions do not find the user's AWS profile.
        """
        return {
            front.ACCESS_KEY_VARIABLE: self.access_key,
            "GATEWAY_PORT": str(port),
            "HOME": str(self.state),
            "MINISTACK_REGION": REGION,
            "PERSIST_STATE": "1",
            "S3_DATA_DIR": str(self.state / "s3"),
            "S3_PERSIST": "1",
            "STATE_DIR": str(self.state / "state"),
        }

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._request("health", "/_ministack/health"), timeout=2) as response:  # noqa: S310
                return bool(response.status == 200)  # noqa: PLR2004
        except OSError:
            return False
