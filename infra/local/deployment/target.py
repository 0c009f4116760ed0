"""What the functions are built for: a Lambda runtime and a processor architecture."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import dataclass

from infra.local.deployment.template import load_template

_ARM_MACHINES = {"arm64", "aarch64"}


@dataclass(frozen=True)
class Target:
    """A runtime such as python3.13, and an architecture: x86_64 or arm64."""

    runtime: str
    architecture: str

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the template."""
        return {"Runtime": self.runtime, "Architecture": self.architecture}

    @property
    def overrides(self) -> tuple[str, ...]:
        """The option of SAM's commands that sets the parameters."""
        return ("--parameter-overrides", *(f"{name}={value}" for name, value in self.parameters.items()))

    @property
    def image(self) -> str:
        """The image that SAM runs the functions in."""
        return f"public.ecr.aws/lambda/{self.runtime.replace('python', 'python:')}-{self.architecture}"

    @property
    def runs_here(self) -> bool:
        """Whether packages that are built for it run on this machine with this Python."""
        return sys.platform == "linux" and self == Target(_own_runtime(), _own_architecture())


def own_target() -> Target:
    """Return the target of this Python and this machine.

    There is no build for Python 3.11 on arm64, because Amazon Linux 2 is too old for psycopg's wheels.
    """
    runtime, architecture = _own_runtime(), _own_architecture()
    return Target(runtime, "x86_64" if runtime == "python3.11" else architecture)


def buildable_targets() -> list[Target]:
    """Return the targets that this machine can build: its own, then those of the other Pythons on the PATH."""
    own = own_target()
    runtimes = load_template()["Parameters"]["Runtime"]["AllowedValues"]
    others = [Target(runtime, own.architecture) for runtime in runtimes if shutil.which(runtime)]
    if own.architecture == "arm64":
        others = [target for target in others if target.runtime != "python3.11"]
    return [own, *(target for target in others if target != own)]


def _own_runtime() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _own_architecture() -> str:
    return "arm64" if platform.machine() in _ARM_MACHINES else "x86_64"
