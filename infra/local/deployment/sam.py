"""Build the template and deploy it to a local AWS with SAM, as for AWS, and only if something changed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import yaml

from infra.local.deployment import gateway
from infra.local.deployment.flatten import flatten
from infra.local.deployment.template import declared_parameters, load_template
from infra.local.paths import CHECKOUT, LAYER, TEMPLATE
from infra.local.servers.emulator import DEFAULT_ACCESS_KEY, REGION, credentials
from infra.local.system import files, programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import python_environment, uv_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

STACK_NAME = "grantwire-local"
BUCKET = "grantwire-artifacts"
UNREACHABLE_ENDPOINT = "http://127.0.0.1:9"  # for tools that call AWS but also work without it
SOURCES = (
    TEMPLATE,
    Path(gateway.__file__),  # what it puts is part of the deployment
    *(CHECKOUT / name for name in ("samconfig.toml", "functions", "infra/sql")),
    *(CHECKOUT / "layers" / name for name in ("Makefile", "core", "idempotency/src")),
)
CONFIG = ("--config-file", CHECKOUT / "samconfig.toml", "--config-env", "local")
LAMBDA_PLATFORM = ("linux", "x86_64")


class LocalAws(Protocol):
    """A local AWS to deploy to."""

    @property
    def url(self) -> str:
        """The address of the AWS API."""

    @property
    def access_key(self) -> str:
        """The access key id that its AWS API accepts."""

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Return the outputs of a CloudFormation stack; empty if it does not exist or is not usable."""

    def create_bucket(self, name: str) -> None:
        """Create a bucket if it does not exist."""

    def reset(self) -> None:
        """Restart with nothing deployed."""


class Deployment:
    """The deployment of the template to one local AWS.

    `layers`: whether that AWS applies layers. `on_host`: whether it runs functions on this machine, not in containers.
    `incomplete_gateway`: its API Gateway, if it ignores parts of the template (see `gateway`). Parameters that the
    template does not declare are ignored.
    """

    def __init__(
        self,
        state: Path,
        emulator: LocalAws,
        parameters: Mapping[str, str],
        *,
        layers: bool = True,
        on_host: bool = True,
        incomplete_gateway: gateway.ApiGateway | None = None,
    ) -> None:
        self.build = state / "build"
        self.log = state / "deployment.log"
        self._state = state
        self._emulator = emulator
        self._layers = layers
        self._on_host = on_host
        self._incomplete_gateway = incomplete_gateway
        declared = declared_parameters()
        # All of them, because SAM keeps the value of the deployment before for a parameter that is not given.
        self.parameters = declared | {name: value for name, value in parameters.items() if name in declared}

    @property
    def artifacts(self) -> Path:
        """The folder that is deployed: SAM's build, or its copy without layers."""
        return self.build if self._layers else self._state / "flattened"

    def is_current(self) -> bool:
        """Return whether the local AWS has the checkout's current state."""
        if self._unfinished.exists() or not self._fingerprint_file.exists():
            return False
        return self._fingerprint_file.read_text() == self._fingerprint() and bool(self.outputs())

    def build_functions(self) -> None:
        """Build every function and the layer as for Lambda, with SAM's cache.

        Raises CommandError with the log if SAM fails.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        self._sam(
            *("build", "--cached", "--parallel", "--template-file", TEMPLATE, *CONFIG),
            *("--build-dir", self.build, "--cache-dir", self._state / "cache"),
        )
        if self._on_host and not on_lambda_platform():
            self._install_host_packages()

    def deploy(self) -> None:
        """Deploy the build in place of what was deployed before, and save its fingerprint after success.

        The local AWS is reset first unless this is its first deployment. An update is not reliable: ministack refuses
        every change of an API's routes, and a stack whose deployment failed often cannot be deployed again. Nothing is
        lost, because PostgreSQL and NATS have all data. Raises CommandError with the log if SAM fails.
        """
        if self._unfinished.exists() or self._fingerprint_file.exists():
            self._emulator.reset()
        if not self._layers:
            flatten(self.build, self.artifacts)
        fingerprint = self._fingerprint()
        self._unfinished.touch()
        self._emulator.create_bucket(BUCKET)
        with self._parameter_file() as file:
            self._sam(
                *("deploy", "--template-file", self.artifacts / "template.yaml", *CONFIG),
                *("--stack-name", STACK_NAME, "--s3-bucket", BUCKET, "--region", REGION),
                *("--parameter-overrides", f"file://{file}"),
            )
        if self._incomplete_gateway is not None:
            outputs = self.outputs()
            gateway.complete_api(self._incomplete_gateway, load_template(), outputs["ApiId"], outputs["ApiStage"])
        self._fingerprint_file.write_text(fingerprint)
        self._unfinished.unlink()

    def outputs(self) -> dict[str, str]:
        """Return the stack's outputs; empty if it is not deployed."""
        return self._emulator.stack_outputs(STACK_NAME)

    def _parameter_file(self) -> AbstractContextManager[Path]:
        """Provide the parameters in a private file: some are secret, and every account can read command lines."""
        return files.private_file(self._state / "parameters.yaml", yaml.safe_dump(self.parameters))

    @property
    def _unfinished(self) -> Path:
        return self._state / "unfinished"

    @property
    def _fingerprint_file(self) -> Path:
        return self._state / "deployed"

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.parameters, self._layers], sort_keys=True).encode())
        for path in _files(SOURCES):
            digest.update(f"\0{path.relative_to(CHECKOUT)}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def _sam(self, *command: str | Path) -> None:
        launch = Launch(
            command=[programs.program_path("sam"), *command],
            environment=aws_environment(self._emulator.url, self._state / "sam", self._emulator.access_key),
            log=self.log,
            directory=self._state,  # SAM keeps dependencies in its working directory
        )
        programs.run(launch, record=self._state / "tool.json", problem=f"sam {command[0]} failed.")

    def _install_host_packages(self) -> None:
        """Replace the binary packages for Lambda with those for this machine, on which the emulator runs functions."""
        for folder in self.build.glob("*/python"):
            target = ("--python", sys.executable, "--target", folder, "--reinstall")
            launch = Launch(
                command=(uv_path(), "pip", "install", *target, "--require-hashes", "-r", LAYER / "requirements.txt"),
                environment=os.environ,
                log=self.log,
                directory=CHECKOUT,
            )
            programs.run(launch, record=self._state / "tool.json", problem="Installing the layer's packages failed.")


def on_lambda_platform() -> bool:
    """Return whether packages that are built for Lambda also run on this machine."""
    return (sys.platform, platform.machine()) == LAMBDA_PLATFORM


def aws_environment(endpoint: str, home: Path, access_key: str = DEFAULT_ACCESS_KEY) -> dict[str, str]:
    """Return SAM's environment: the user's settings for pip, but none that point to a real AWS account."""
    home.mkdir(parents=True, exist_ok=True)
    # Once a week SAM checks the package index for a newer version, and waits for the response.
    (home / "metadata.json").write_text(json.dumps({"lastVersionCheck": time.time()}))
    # `python_environment` keeps byte code away from the sources, where it would invalidate SAM's cache.
    inherited = {name: value for name, value in python_environment().items() if not name.startswith(("AWS_", "SAM_"))}
    return {
        **inherited,
        **credentials(access_key),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "SAM_CLI_POLL_DELAY": "0.3",  # seconds between polls of a deployment; the default of 5 is meant for AWS
        "SAM_CLI_TELEMETRY": "0",
        "__SAM_CLI_APP_DIR": str(home),
    }


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        paths = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        yield from (path for path in paths if "__pycache__" not in path.parts)
