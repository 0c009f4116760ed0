"""`sam local` on one build of the template, with functions that reach the servers of this machine."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from infra.local.conditions import Decisions
from infra.local.deployment import TEMPLATE, Deployment, aws_environment
from infra.local.emulator import REGION, EmulatorServer
from infra.local.errors import LocalStackError
from infra.local.forwarding import forwarding
from infra.local.template_globals import FUNCTION, functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from infra.local.engine import Engine

SAM = Path(sys.executable).with_name("sam")
EVENTS = TEMPLATE.parent / "infra" / "events"
NOWHERE = "http://127.0.0.1:9"  # `sam local` asks AWS who we are, and goes on without an answer
CONTAINER_HOST = "host.docker.internal"
LOOPBACK = re.compile(r"(?<=[/@])(?:127\.0\.0\.1|localhost):(\d+)")


class SamLocal:
    """The functions of one build, each of which SAM starts in a container of its own."""

    def __init__(self, state: Path, build: Path) -> None:
        self._state = state
        self._template = build / "template.yaml"

    @cached_property
    def template(self) -> dict[str, Any]:
        """The built template, in which SAM has written every short function in its long form."""
        loaded: dict[str, Any] = yaml.safe_load(self._template.read_text())
        return loaded

    @property
    def image(self) -> str:
        """The image that SAM runs the functions in."""
        common = self.template["Globals"]["Function"]
        return f"public.ecr.aws/lambda/{common['Runtime'].replace('python', 'python:')}-{common['Architectures'][0]}"

    @property
    def environment(self) -> dict[str, str]:
        """What SAM itself runs with: nothing that leads to a real account."""
        return {**aws_environment(NOWHERE, self._state / "sam"), "AWS_MAX_ATTEMPTS": "1"}

    @contextlib.contextmanager
    def options(self, engine: Engine, parameters: Mapping[str, str]) -> Iterator[list[str | Path]]:
        """Give the options that every `sam local` command needs; they hold while inside.

        Parameters are the template's. Where their values are addresses on this machine, containers get others, which
        lead to the same servers.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            # Its values are secrets: SAM takes them from a file that nobody else can read.
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".json", dir=self._state))
            json.dump(self.variables(parameters), file)
            file.flush()
            yield [
                *("--template-file", self.written(), "--env-vars", file.name),
                *("--layer-cache-basedir", self._state / "layers"),
                *(["--skip-pull-image"] if engine.has_image(self.image) else []),
                *self._way_to_host(engine, parameters, stack),
            ]

    def variables(self, parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Give each function's variables that follow from the parameters; SAM knows the others' defaults.

        Only variables that the template declares: SAM drops others without a word.
        """
        if unknown := parameters.keys() - self.template["Parameters"].keys():
            raise LocalStackError(f"The template has no parameter {', '.join(sorted(unknown))}.")
        decisions = Decisions(self.template, parameters)
        return {
            name: {
                variable: LOOPBACK.sub(rf"{CONTAINER_HOST}:\1", decisions.text(value) or "")
                for variable, value in properties["Environment"]["Variables"].items()
                if isinstance(value, dict) and ("Fn::If" in value or value.get("Ref") in parameters)
            }
            for name, properties in functions(self.template).items()
        }

    def written(self) -> Path:
        """Write the template as SAM needs it, beside the build's: its folders are named from there.

        SAM finds no authorizer that is named by `GetAtt`, if that function's own name is put together by the template.
        """
        template = copy.deepcopy(self.template)
        for resource in template["Resources"].values():
            for authorizer in resource["Properties"].get("Auth", {}).get("Authorizers", {}).values():
                function, _ = authorizer["FunctionArn"]["Fn::GetAtt"]
                authorizer["FunctionArn"] = f"arn:aws:lambda:{REGION}:123456789012:function:{function}"
        path = self._template.with_name("sam-local.yaml")
        path.write_text(yaml.safe_dump(template, sort_keys=False))
        return path

    def _way_to_host(self, engine: Engine, parameters: Mapping[str, str], stack: contextlib.ExitStack) -> list[str]:
        bridge = engine.bridge()
        if bridge is None:
            return []
        ports = [int(port) for value in parameters.values() for port in LOOPBACK.findall(value)]
        stack.enter_context(forwarding(bridge, ports))
        return ["--add-host", f"{CONTAINER_HOST}:{bridge.address}"]


def logical_names() -> dict[str, str]:
    """Give the template's name of each function, by the folder of its code."""

    class Loader(yaml.SafeLoader):
        """YAML with CloudFormation's short functions, whose values do not matter here."""

    Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)
    resources = yaml.load(TEMPLATE.read_text(), Loader)["Resources"]  # noqa: S506  # a SafeLoader
    return {
        Path(resource["Properties"]["CodeUri"]).name: name
        for name, resource in resources.items()
        if resource["Type"] == FUNCTION
    }


def build(state: Path) -> Path:
    """Build the functions for Lambda, whatever this machine is; what did not change comes from the cache."""
    deployment = Deployment(state, EmulatorServer(state / "aws"), {}, on_host=False)  # an emulator that never runs
    deployment.build_functions()
    return deployment.build
