"""`sam local` for one build of the template, with functions that reach the servers of this machine."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from infra.local.containers.forwarding import forward_ports
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.sam import UNREACHABLE_ENDPOINT, Deployment, Limits, aws_environment
from infra.local.deployment.target import buildable_targets
from infra.local.deployment.template import function_variables, load_template, write_template
from infra.local.errors import CommandError
from infra.local.servers.emulator import REGION, EmulatorServer
from infra.local.system import files, programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from infra.local.containers.engine import Engine
    from infra.local.deployment.target import Target

SAM = programs.program_path("sam")
CONTAINER_HOST = "host.docker.internal"
LOOPBACK = re.compile(r"(?<=[/@])(?:127\.0\.0\.1|localhost):(\d+)")


class SamLocal:
    """The functions of one build for a target; SAM starts each in its own container."""

    def __init__(self, state: Path, build: Path, target: Target) -> None:
        self.image = target.image
        self._state = state
        self._template = build / "template.yaml"
        self._target = target

    @cached_property
    def template(self) -> dict[str, Any]:
        """The built template, in long form."""
        return load_template(self._template)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of SAM itself, which does not point to a real AWS account."""
        return {**aws_environment(UNREACHABLE_ENDPOINT, self._state / "sam"), "AWS_MAX_ATTEMPTS": "1"}

    @contextlib.contextmanager
    def options(self, engine: Engine, parameters: Mapping[str, str]) -> Iterator[list[str | Path]]:
        """Provide the options of every `sam local` command; they are valid inside the block.

        `parameters` are the template's. Containers get other addresses for the servers of this machine.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            # The values contain secrets, so SAM reads them from a private file.
            text = json.dumps(self.function_environments(parameters))
            file = stack.enter_context(files.private_file(self._state / f"variables-{os.getpid()}.json", text))
            yield [
                *("--template-file", self.write_sam_template(), "--env-vars", file),
                *("--layer-cache-basedir", self._state / "layers"),
                *self._target.overrides,
                *(["--skip-pull-image"] if engine.has_image(self.image) else []),
                *self._host_options(engine, parameters, stack),
            ]

    def function_environments(self, parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return the variables of each function whose values depend on the parameters.

        They are only variables that the template declares, because SAM ignores others silently. Raises CommandError for
        a parameter that the template does not have.
        """
        if unknown := parameters.keys() - self.template["Parameters"].keys():
            raise CommandError(f"The template has no parameter {', '.join(sorted(unknown))}.")
        evaluator = ConditionEvaluator(self.template, parameters)
        return {
            name: {
                variable: LOOPBACK.sub(rf"{CONTAINER_HOST}:\1", evaluator.text(value) or "")
                for variable, value in variables.items()
                if isinstance(value, dict) and ("Fn::If" in value or value.get("Ref") in parameters)
            }
            for name, variables in function_variables(self.template).items()
        }

    def write_sam_template(self) -> Path:
        """Write the template for `sam local` next to the built one, whose relative paths it keeps, and return its path.

        SAM does not resolve an authorizer that is referenced with `GetAtt` if the function's name is itself computed.
        The references are replaced by plain ARNs.
        """
        template = copy.deepcopy(self.template)
        for resource in template["Resources"].values():
            for authorizer in resource["Properties"].get("Auth", {}).get("Authorizers", {}).values():
                function, _ = authorizer["FunctionArn"]["Fn::GetAtt"]
                authorizer["FunctionArn"] = f"arn:aws:lambda:{REGION}:123456789012:function:{function}"
        path = self._template.with_name("sam-local.yaml")
        write_template(template, path)
        return path

    def _host_options(self, engine: Engine, parameters: Mapping[str, str], stack: contextlib.ExitStack) -> list[str]:
        bridge = engine.bridge()
        if bridge is None:
            return []
        ports = [int(port) for value in parameters.values() for port in LOOPBACK.findall(value)]
        stack.enter_context(forward_ports(bridge, ports))
        return ["--add-host", f"{CONTAINER_HOST}:{bridge.address}"]


def available_target(engine: Engine) -> Target:
    """Return the first target that this machine can build and whose image is present; or its own, to be pulled."""
    targets = buildable_targets()
    return next((target for target in targets if engine.has_image(target.image)), targets[0])


def build_functions(state: Path, target: Target) -> Path:
    """Build the functions for a target, with SAM's cache, and return the build folder."""
    aws = EmulatorServer(state / "aws")  # it is never started
    deployment = Deployment(state, aws, {}, target=target, limits=Limits(runs_containers=True))
    deployment.build_functions()
    return deployment.build
