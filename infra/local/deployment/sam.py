"""Build the template and deploy it to a local AWS with SAM, as to AWS, and only when something changed."""

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

from infra.local.deployment.flatten import flatten
from infra.local.deployment.template import declared_parameters
from infra.local.paths import CHECKOUT, LAYER, TEMPLATE
from infra.local.servers.emulator import CREDENTIALS, REGION
from infra.local.system import files, programs
from infra.local.system.processes import Launch
from infra.local.toolchain.environments import python_environment, uv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

STACK_NAME = "grantwire-local"
BUCKET = "grantwire-artifacts"
NOWHERE = "http://127.0.0.1:9"  # for tools that ask AWS who we are, and go on without an answer
SOURCES = (
    TEMPLATE,
    *(CHECKOUT / name for name in ("samconfig.toml", "functions", "layers", "infra/migrations", "infra/sql")),
)
CONFIG = ("--config-file", CHECKOUT / "samconfig.toml", "--config-env", "local")
LAMBDA_PLATFORM = ("linux", "x86_64")


class Aws(Protocol):
    """A local AWS to deploy to."""

    @property
    def url(self) -> str:
        """Where its API answers."""

    def stack_outputs(self, stack: str) -> dict[str, str]:
        """Give a CloudFormation stack's outputs; none if there is no such stack, or not in a usable state."""

    def make_bucket(self, name: str) -> None:
        """Make a bucket, or leave it as it is."""

    def reset(self) -> None:
        """Start again with nothing deployed."""


class Deployment:
    """The template on one local AWS.

    `layers`: whether that AWS applies layers. `on_host`: whether it runs functions on this machine, not in containers.
    """

    def __init__(
        self, state: Path, emulator: Aws, parameters: Mapping[str, str], *, layers: bool = True, on_host: bool = True
    ) -> None:
        self.build = state / "build"
        self.log = state / "deployment.log"
        self._state = state
        self._emulator = emulator
        self._layers = layers
        self._on_host = on_host
        declared = declared_parameters()
        self.parameters = {name: value for name, value in parameters.items() if name in declared}

    @property
    def artifacts(self) -> Path:
        """The folder that is deployed: what SAM built, or that without layers."""
        return self.build if self._layers else self._state / "flattened"

    def current(self) -> bool:
        """Tell whether the emulator has what the checkout holds."""
        if self._unfinished.exists() or not self._fingerprint_file.exists():
            return False
        return self._fingerprint_file.read_text() == self._fingerprint() and bool(self.outputs())

    def build_functions(self) -> None:
        """Build every function and the layer as for Lambda; what did not change comes from the cache."""
        self._state.mkdir(parents=True, exist_ok=True)
        self._sam(
            *("build", "--cached", "--parallel", "--template-file", TEMPLATE, *CONFIG),
            *("--build-dir", self.build, "--cache-dir", self._state / "cache"),
        )
        if self._on_host and not on_lambda_platform():
            self._fit_to_host()

    def deploy(self) -> None:
        """Deploy the build, and remember what was deployed only when it was.

        A stack whose deployment failed or was interrupted can often not be deployed again: then start over.
        """
        if self._unfinished.exists():
            self._emulator.reset()
        if not self._layers:
            flatten(self.build, self.artifacts)
        fingerprint = self._fingerprint()
        self._unfinished.touch()
        self._emulator.make_bucket(BUCKET)
        with self._parameter_file() as file:
            self._sam(
                *("deploy", "--template-file", self.artifacts / "template.yaml", *CONFIG),
                *("--stack-name", STACK_NAME, "--s3-bucket", BUCKET, "--region", REGION),
                *("--parameter-overrides", f"file://{file}"),
            )
        self._fingerprint_file.write_text(fingerprint)
        self._unfinished.unlink()

    def outputs(self) -> dict[str, str]:
        """Give the stack's outputs; none if it is not deployed."""
        return self._emulator.stack_outputs(STACK_NAME)

    def _parameter_file(self) -> AbstractContextManager[Path]:
        """Give SAM the parameters, some of them secret, in a file of ours: anybody can read a command line."""
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
            command=[programs.installed("sam"), *command],
            environment=aws_environment(self._emulator.url, self._state / "sam"),
            log=self.log,
            directory=self._state,  # SAM keeps dependencies in the folder that it is started in
        )
        programs.run(launch, record=self._state / "tool.json", problem=f"sam {command[0]} failed.")

    def _fit_to_host(self) -> None:
        """Replace Lambda's binary packages by this machine's: the emulator runs functions on the host."""
        for folder in self.build.glob("*/python"):
            target = ("--python", sys.executable, "--target", folder, "--reinstall")
            launch = Launch(
                command=(uv(), "pip", "install", *target, "--require-hashes", "-r", LAYER / "requirements.txt"),
                environment=os.environ,
                log=self.log,
                directory=CHECKOUT,
            )
            programs.run(launch, record=self._state / "tool.json", problem="Installing the layer failed.")


def on_lambda_platform() -> bool:
    """Tell whether packages that were built for Lambda run on this machine too."""
    return (sys.platform, platform.machine()) == LAMBDA_PLATFORM


def aws_environment(endpoint: str, home: Path) -> dict[str, str]:
    """Give SAM's environment: the person's settings for pip, and none that lead to a real AWS account."""
    home.mkdir(parents=True, exist_ok=True)
    # SAM asks the package index for a newer SAM once a week, and waits for the answer.
    (home / "metadata.json").write_text(json.dumps({"lastVersionCheck": time.time()}))
    # SAM's cache would notice new byte code beside the sources.
    kept = {name: value for name, value in python_environment().items() if not name.startswith(("AWS_", "SAM_"))}
    return {
        **kept,
        **CREDENTIALS,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "SAM_CLI_POLL_DELAY": "0.3",  # seconds between looks at a deployment; meant for AWS, the default is 5
        "SAM_CLI_TELEMETRY": "0",
        "__SAM_CLI_APP_DIR": str(home),
    }


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        yield from (path for path in found if "__pycache__" not in path.parts)
