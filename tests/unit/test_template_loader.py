"""Loading of a template, and evaluation of its conditions and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import (
    declared_parameters,
    function_variables,
    load_template,
    logical_names,
    write_template,
)
from infra.local.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
Metadata:
  Shared:
    Worker: &worker
      Timeout: 75
      Environment: &environment
        Variables: &variables
          LEVEL: !Ref Level
          URL: !Sub "postgresql://${Host}/d"
    Alarm: &alarm {Threshold: 0}
Parameters:
  Level: {Type: String, Default: INFO}
  Port: {Type: Number, Default: 5432}
Globals:
  Function:
    Environment:
      Variables: {SERVICE: grantwire, LEVEL: WARN}
Resources:
  RelayFunction:
    Type: AWS::Serverless::Function
    Properties:
      <<: *worker
      CodeUri: functions/relay/
      Role: !GetAtt Role.Arn
  BridgeFunction:
    Type: AWS::Serverless::Function
    Properties:
      <<: [*worker, *alarm]
      CodeUri: functions/bridge/
      Timeout: 90
      Environment:
        Variables:
          <<: *variables
          STREAM: !If [HasStream, !Ref Stream, !Ref AWS::NoValue]
  Table:
    Type: AWS::DynamoDB::Table
    Properties: !Transform {Name: Include, Parameters: {<<: *alarm, Location: here}}
"""


@pytest.fixture
def template(tmp_path: Path) -> dict[str, Any]:
    """A template with nested anchors, merge keys and tags."""
    path = tmp_path / "template.yaml"
    path.write_text(TEXT)
    return load_template(path)


def test_short_tags_become_full_function_names(template: dict[str, Any]) -> None:
    """Also inside anchors and merged values."""
    relay = template["Resources"]["RelayFunction"]["Properties"]
    assert relay == {
        "Timeout": 75,
        "Environment": {"Variables": {"LEVEL": {"Ref": "Level"}, "URL": {"Fn::Sub": "postgresql://${Host}/d"}}},
        "CodeUri": "functions/relay/",
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
    }
    assert template["Resources"]["Table"]["Properties"] == {
        "Fn::Transform": {"Name": "Include", "Parameters": {"Threshold": 0, "Location": "here"}}
    }


def test_own_value_overrides_merged_value(template: dict[str, Any]) -> None:
    """As in YAML; of two merged values, the first one applies."""
    bridge = template["Resources"]["BridgeFunction"]["Properties"]
    assert (bridge["Timeout"], bridge["Threshold"]) == (90, 0)
    assert bridge["Environment"]["Variables"] == {
        "LEVEL": {"Ref": "Level"},
        "URL": {"Fn::Sub": "postgresql://${Host}/d"},
        "STREAM": {"Fn::If": ["HasStream", {"Ref": "Stream"}, {"Ref": "AWS::NoValue"}]},
    }


def test_changing_one_function_does_not_change_others(template: dict[str, Any]) -> None:
    """Values of an anchor are copied, not shared, in memory."""
    resources = template["Resources"]
    resources["RelayFunction"]["Properties"]["Environment"]["Variables"]["LEVEL"]["Ref"] = "Changed"
    assert resources["BridgeFunction"]["Properties"]["Environment"]["Variables"]["LEVEL"] == {"Ref": "Level"}


def test_written_template_can_be_loaded_again(template: dict[str, Any], tmp_path: Path) -> None:
    """The file has no tags and no aliases, so SAM and plain YAML can read it."""
    write_template(template, tmp_path / "again.yaml")
    assert load_template(tmp_path / "again.yaml") == template == yaml.safe_load((tmp_path / "again.yaml").read_text())
    assert "*id" not in (tmp_path / "again.yaml").read_text()


def test_variables_of_a_function_override_globals(template: dict[str, Any]) -> None:
    """As SAM merges them."""
    variables = function_variables(template)
    assert variables["RelayFunction"] == {
        "SERVICE": "grantwire",
        "LEVEL": {"Ref": "Level"},
        "URL": {"Fn::Sub": "postgresql://${Host}/d"},
    }
    assert logical_names(template) == {"relay": "RelayFunction", "bridge": "BridgeFunction"}


def test_default_template_is_loaded() -> None:
    """Default values are strings, as CloudFormation passes them."""
    assert declared_parameters()["Stage"] == "prod"
    assert all(isinstance(value, str) for value in declared_parameters().values())


@pytest.mark.parametrize("text", ["Resources: [", "a: *missing", "- a list", ""])
def test_invalid_template_is_an_error_that_names_the_file(text: str, tmp_path: Path) -> None:
    """The reader of the error has probably just edited the file."""
    path = tmp_path / "template.yaml"
    path.write_text(text)
    with pytest.raises(CommandError, match=r"template\.yaml"):
        load_template(path)


CONDITIONS: dict[str, Any] = {
    "Parameters": {"Stage": {"Default": "prod"}, "Url": {"Default": ""}, "Seconds": {"Default": 0}},
    "Conditions": {
        "IsLocal": {"Fn::Equals": [{"Ref": "Stage"}, "local"]},
        "HasUrl": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Url"}, ""]}]},
        "Both": {"Fn::And": [{"Condition": "IsLocal"}, {"Condition": "HasUrl"}]},
        "Either": {"Fn::Or": [{"Condition": "IsLocal"}, {"Condition": "HasUrl"}]},
        "Cached": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Seconds"}, 0]}]},
    },
    "Rules": {
        "Known": {"Assertions": [{"Assert": {"Fn::Contains": [["local", "dev"], {"Ref": "Stage"}]}}]},
        "KnownWithUrl": {
            "RuleCondition": {"Fn::Equals": [{"Ref": "Url"}, "u"]},
            "Assertions": [{"Assert": {"Fn::Contains": [["local", "dev"], {"Ref": "Stage"}]}}],
        },
    },
}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, set()),
        ({"Stage": "local"}, {"IsLocal", "Either"}),
        ({"Url": "u"}, {"HasUrl", "Either"}),
        ({"Stage": "local", "Url": "u"}, {"IsLocal", "HasUrl", "Both", "Either"}),
        ({"Seconds": "60"}, {"Cached"}),
    ],
)
def test_conditions_are_evaluated_with_parameters(parameters: dict[str, str], expected: set[str]) -> None:
    """CloudFormation compares a number in the template as a string."""
    evaluator = ConditionEvaluator(CONDITIONS, parameters)
    assert {name for name in CONDITIONS["Conditions"] if evaluator.holds({"Condition": name})} == expected


@pytest.mark.parametrize(
    ("parameters", "known", "with_url"),
    [({}, False, True), ({"Stage": "dev"}, True, True), ({"Url": "u"}, False, False)],
)
def test_rules_accept_or_reject_parameters(parameters: dict[str, str], known: bool, with_url: bool) -> None:
    """A rule whose condition is false rejects nothing."""
    evaluator = ConditionEvaluator(CONDITIONS, parameters)
    assert (evaluator.accepts("Known"), evaluator.accepts("KnownWithUrl")) == (known, with_url)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("literal", "literal"),
        (5, "5"),
        (True, "true"),
        ({"Ref": "Stage"}, "prod"),
        ({"Fn::If": ["IsLocal", "off", {"Fn::If": ["HasUrl", "url", "verify"]}]}, "verify"),
        ({"Ref": "SomeResource"}, None),
        ({"Fn::Sub": "${Stage}_x"}, "prod_x"),
        ({"Fn::Sub": "${AWS::StackName}-${Stage}"}, None),
    ],
)
def test_value_is_text_or_unknown(node: Any, text: str | None) -> None:
    """Values that only AWS knows are None."""
    assert ConditionEvaluator(CONDITIONS, {}).text(node) == text
