"""J4: two stacks in one account. No alarm or widget of one can see a metric of the other."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

from grantwire_cli.checks.preflight import MAX_STACK_NAME
from infra.local.deployment.template import function_suffixes, load_template

# A stack whose name begins with that of the other one.
NAMES = ("grantwire", "grantwire-a")


class Stack:
    """The template that SAM gives to CloudFormation, with the values of one stack, as far as names need them."""

    def __init__(self, name: str) -> None:
        template = load_template()
        for resource in template["Resources"].values():
            for content in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
                resource["Properties"][content] = "s3://bucket/key"
        self._values = {"AWS::StackName": name, "AWS::Region": "eu-central-1", "Stage": "prod"}
        translated = transform(template, {}, SimpleNamespace(load=dict))["Resources"]
        self.functions: dict[str, dict[str, Any]] = {}
        for logical, resource in translated.items():
            if resource["Type"] == "AWS::Lambda::Function":
                properties = resource["Properties"]
                self._values[logical] = self.resolve(properties["FunctionName"])
                self.functions[self._values[logical]] = properties
        self.apis = {self.resolve(r["Properties"]["Name"]) for r in _of_type(translated, "AWS::ApiGateway::RestApi")}
        self.alarms = [resource["Properties"] for resource in _of_type(translated, "AWS::CloudWatch::Alarm")]
        (dashboard,) = _of_type(translated, "AWS::CloudWatch::Dashboard")
        self.dashboard = json.loads(self.resolve(dashboard["Properties"]["DashboardBody"]))

    @property
    def services(self) -> set[str]:
        """The values of the dimension `service` in the metrics of the functions."""
        variables = [properties["Environment"]["Variables"] for properties in self.functions.values()]
        return {self.resolve(one["POWERTOOLS_SERVICE_NAME"]) for one in variables}

    def resolve(self, node: Any) -> str:
        """Return the text of a literal, a Ref, a Sub or a Join."""
        if isinstance(node, dict) and "Ref" in node:
            return self._values.get(node["Ref"], f"<{node['Ref']}>")
        if isinstance(node, dict) and "Fn::Sub" in node:
            return re.sub(r"\$\{([\w:]+)\}", lambda match: self._values[match[1]], node["Fn::Sub"])
        if isinstance(node, dict) and "Fn::Join" in node:
            separator, parts = node["Fn::Join"]
            return str(separator).join(map(self.resolve, parts))
        return str(node)


def _of_type(resources: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [resource for resource in resources.values() if resource["Type"] == kind]


@pytest.fixture(scope="module")
def stacks() -> tuple[Stack, Stack]:
    """Both stacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        first, second = (Stack(name) for name in NAMES)
    return first, second


def test_metrics_of_a_stack_have_its_name(stacks: tuple[Stack, Stack]) -> None:
    """Every function of a stack writes the same service, which no other stack has."""
    assert [stack.services for stack in stacks] == [{name} for name in NAMES]
    assert not stacks[0].functions.keys() & stacks[1].functions.keys()


def test_alarms_see_only_metrics_of_their_stack(stacks: tuple[Stack, Stack]) -> None:
    """By the service, by the names of the functions in a query, or by the name of the API."""
    for stack in stacks:
        for alarm in stack.alarms:
            dimensions = {one["Name"]: stack.resolve(one["Value"]) for one in alarm.get("Dimensions", [])}
            name = stack.resolve(alarm["AlarmName"])
            if alarm.get("Namespace") == "Grantwire":
                assert dimensions["service"] in stack.services, name
            elif alarm.get("Namespace") == "AWS/ApiGateway":
                assert dimensions["ApiName"] in stack.apis, name
            else:
                (query,) = alarm["Metrics"]
                seen = re.findall(r"FunctionName = '([^']+)'", stack.resolve(query["Expression"]))
                assert seen, name
                assert set(seen) <= stack.functions.keys(), name  # test_template.py knows which of them
        names = [stack.resolve(alarm["AlarmName"]) for alarm in stack.alarms]
        assert len(set(names)) == len(names)
    first, second = ({stack.resolve(alarm["AlarmName"]) for alarm in stack.alarms} for stack in stacks)
    assert not first & second


def test_dashboard_shows_only_metrics_of_its_stack(stacks: tuple[Stack, Stack]) -> None:
    """A `.` stands for the value above it."""
    for stack in stacks:
        for widget in stack.dashboard["widgets"]:
            above: list[str] = []
            for metric in widget["properties"]["metrics"]:
                above = [above[i] if value == "." else value for i, value in enumerate(metric)]
                dimensions = dict(zip(above[2::2], above[3::2], strict=True))
                assert dimensions.get("service", next(iter(stack.services))) in stack.services
                assert dimensions.get("ApiName", next(iter(stack.apis))) in stack.apis
                assert {"service", "ApiName"} & dimensions.keys()


def test_longest_stack_name_fits_every_function() -> None:
    """Lambda allows 64 characters, so `doctor --before-deploy` refuses a name above the limit."""
    assert MAX_STACK_NAME + max(map(len, function_suffixes(load_template()))) == 64
