"""Build the template and deploy it to a local AWS with SAM, as for AWS, and only if something changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import yaml

from infra.local.deployment import gateway, localstack
from infra.local.deployment.flatten import flatten
from infra.local.deployment.target import own_target
from infra.local.deployment.template import declared_parameters, load_template
from infra.local.errors import CommandError
from infra.local.paths import CHECKOUT, LAYER_LOCKS, TEMPLATE
from infra.local.servers.emulator import DEFAULT_ACCESS_KEY, REGION, credentials
from infra.local.system import files, programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import python_environment, uv_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from infra.local.deployment.target import Target

STACK_NAME = "grantwire-local"
BUCKET = "grantwire-artifacts"
UNREACHABLE_ENDPOINT = "http://127.0.0.1:9"  # for tools that call AWS but also work without it
SOURCES = (
    TEMPLATE,
    *map(Path, (gateway.__file__, localstack.__file__)),  # what they write is part of the deployment
    *(CHECKOUT / name for name in ("samconfig.toml", "functions", "infra/sql")),
    *(CHECKOUT / "layers" / name for name in ("Makefile", "core", "credentials", "idempotency/src")),
)
CONFIG = ("--config-file", CHECKOUT / "samconfig.toml", "--config-env", "local")
MAKE_HINT = "Debian, Ubuntu: apt install make - macOS: xcode-select --install"


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


@dataclass(frozen=True)
class Limits:
    """What a local AWS lacks and the deployment makes up for.

    `ignores_layers`: it accepts layers but does not apply them. `has_old_sam`: its SAM does not know all properties of
    the template (see `localstack`). `runs_containers`: functions run in containers, not on this machine.
    `incomplete_gateway`: its API Gateway, which ignores parts of the template (see `gateway`).
    """

    ignores_layers: bool = False
    has_old_sam: bool = False
    runs_containers: bool = False
    incomplete_gateway: gateway.ApiGateway | None = None


class Deployment:
    """The deployment of the template to one local AWS, for a target, by default that of this machine.

    Parameters that the template does not declare are ignored.
    """

    def __init__(
        self,
        state: Path,
        emulator: LocalAws,
        parameters: Mapping[str, str],
        *,
        target: Target | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.build = state / "build"
        self.log = state / "deployment.log"
        self._state = state
        self._emulator = emulator
        self._limits = limits or Limits()
        self.target = target or own_target()
        declared = declared_parameters()
        given = {name: value for name, value in parameters.items() if name in declared}
        # All of them, because SAM keeps the value of the deployment before for a parameter that is not given.
        self.parameters = declared | given | self.target.parameters

    @property
    def artifacts(self) -> Path:
        """The folder that is deployed: SAM's build, or its copy without layers."""
        return self._state / "flattened" if self._limits.ignores_layers else self.build

    def is_current(self) -> bool:
        """Return whether the local AWS has the checkout's current state."""
        if self._unfinished.exists() or not self._fingerprint_file.exists():
            return False
        return self._fingerprint_file.read_text() == self._fingerprint() and bool(self.outputs())

    def build_functions(self) -> None:
        """Build every function and the layer as for Lambda, with SAM's cache.

        Raises CommandError if there is no make, or with the log if SAM fails.
        """
        check_make()
        self._state.mkdir(parents=True, exist_ok=True)
        self._sam(
            *("build", "--cached", "--parallel", "--template-file", TEMPLATE, *CONFIG),
            *("--build-dir", self.build, "--cache-dir", self._state / "cache"),
            *self.target.overrides,
        )
        if not (self._limits.runs_containers or self.target.runs_here):
            self._install_host_packages()

    def deploy(self) -> None:
        """Deploy the build in place of what was deployed before, and save its fingerprint after success.

        The local AWS is reset first unless this is its first deployment. An update is not reliable: ministack refuses
        every change of an API's routes, and a stack whose deployment failed often cannot be deployed again. Nothing is
        lost, because PostgreSQL and NATS have all data. Raises CommandError with the log if SAM fails.
        """
        if self._unfinished.exists() or self._fingerprint_file.exists():
            self._emulator.reset()
        if self._limits.ignores_layers:
            flatten(self.build, self.artifacts, self.parameters)
        template = self.artifacts / "template.yaml"
        if self._limits.has_old_sam:
            template = localstack.write_localstack_template(template)
        fingerprint = self._fingerprint()
        self._unfinished.touch()
        self._emulator.create_bucket(BUCKET)
        with self._parameter_file() as file:
            self._sam(
                *("deploy", "--template-file", template, *CONFIG),
                *("--stack-name", STACK_NAME, "--s3-bucket", BUCKET, "--region", REGION),
                *("--parameter-overrides", f"file://{file}"),
            )
        if self._limits.incomplete_gateway is not None:
            outputs, api = self.outputs(), self._limits.incomplete_gateway
            gateway.complete_api(api, load_template(), outputs["ApiId"], outputs["ApiStage"])
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
        digest = hashlib.sha256(json.dumps([self.parameters, self._limits.ignores_layers], sort_keys=True).encode())
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
        for layer, lock in LAYER_LOCKS.items():
            target = ("--python", sys.executable, "--target", self.build / layer / "python", "--reinstall")
            launch = Launch(
                command=(uv_path(), "pip", "install", *target, "--require-hashes", "-r", lock),
                environment=os.environ,
                log=self.log,
                directory=CHECKOUT,
            )
            problem = f"Installing the packages of {layer} failed."
            programs.run(launch, record=self._state / "tool.json", problem=problem)


def check_make() -> None:
    """Raise CommandError if there is no make, with which SAM builds the layers."""
    if shutil.which("make") is None:
        raise CommandError("`make` is not on the PATH. SAM builds the layers with it.", hint=MAKE_HINT)


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
