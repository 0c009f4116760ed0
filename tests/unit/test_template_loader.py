"""Reading a template, and evaluating its conditions and rules."""

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
    """With anchors, merge keys and tags, also inside each other."""
    path = tmp_path / "template.yaml"
    path.write_text(TEXT)
    return load_template(path)


def test_tags_become_long_functions(template: dict[str, Any]) -> None:
    """Also what an anchor holds and a merge key brings."""
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


def test_a_function_s_own_value_wins_over_a_merged_one(template: dict[str, Any]) -> None:
    """As YAML says; of two that are merged, the first."""
    bridge = template["Resources"]["BridgeFunction"]["Properties"]
    assert (bridge["Timeout"], bridge["Threshold"]) == (90, 0)
    assert bridge["Environment"]["Variables"] == {
        "LEVEL": {"Ref": "Level"},
        "URL": {"Fn::Sub": "postgresql://${Host}/d"},
        "STREAM": {"Fn::If": ["HasStream", {"Ref": "Stream"}, {"Ref": "AWS::NoValue"}]},
    }


def test_a_change_of_one_function_leaves_the_others_alone(template: dict[str, Any]) -> None:
    """What an anchor shares in the file is not shared in memory, nor written as shared."""
    resources = template["Resources"]
    resources["RelayFunction"]["Properties"]["Environment"]["Variables"]["LEVEL"]["Ref"] = "Changed"
    assert resources["BridgeFunction"]["Properties"]["Environment"]["Variables"]["LEVEL"] == {"Ref": "Level"}


def test_what_is_written_is_read_the_same(template: dict[str, Any], tmp_path: Path) -> None:
    """SAM and plain YAML both read it: no tags, no aliases."""
    write_template(template, tmp_path / "again.yaml")
    assert load_template(tmp_path / "again.yaml") == template == yaml.safe_load((tmp_path / "again.yaml").read_text())
    assert "*id" not in (tmp_path / "again.yaml").read_text()


def test_variables_of_all_functions_and_a_function_s_own(template: dict[str, Any]) -> None:
    """As SAM puts them together: the function's own value wins."""
    variables = function_variables(template)
    assert variables["RelayFunction"] == {
        "SERVICE": "grantwire",
        "LEVEL": {"Ref": "Level"},
        "URL": {"Fn::Sub": "postgresql://${Host}/d"},
    }
    assert logical_names(template) == {"relay": "RelayFunction", "bridge": "BridgeFunction"}


def test_this_checkout_s_template_is_read() -> None:
    """Defaults are text, as CloudFormation passes them."""
    assert declared_parameters()["Stage"] == "prod"
    assert all(isinstance(value, str) for value in declared_parameters().values())


@pytest.mark.parametrize("text", ["Resources: [", "a: *missing", "- a list", ""])
def test_what_is_no_template_is_explained(text: str, tmp_path: Path) -> None:
    """With its name; a person has just edited it."""
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
    ("given", "expected"),
    [
        ({}, set()),
        ({"Stage": "local"}, {"IsLocal", "Either"}),
        ({"Url": "u"}, {"HasUrl", "Either"}),
        ({"Stage": "local", "Url": "u"}, {"IsLocal", "HasUrl", "Both", "Either"}),
        ({"Seconds": "60"}, {"Cached"}),
    ],
)
def test_conditions_hold_for_given_parameters(given: dict[str, str], expected: set[str]) -> None:
    """A number in the template is the text that CloudFormation compares."""
    evaluator = ConditionEvaluator(CONDITIONS, given)
    assert {name for name in CONDITIONS["Conditions"] if evaluator.holds({"Condition": name})} == expected


@pytest.mark.parametrize(
    ("given", "known", "with_url"),
    [({}, False, True), ({"Stage": "dev"}, True, True), ({"Url": "u"}, False, False)],
)
def test_rules_accept_or_refuse(given: dict[str, str], known: bool, with_url: bool) -> None:
    """One whose condition does not hold refuses nothing."""
    evaluator = ConditionEvaluator(CONDITIONS, given)
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
        ({"Fn::Sub": "${Stage}"}, None),
    ],
)
def test_a_value_is_text_or_not_known(node: Any, text: str | None) -> None:
    """What only AWS can know is none."""
    assert ConditionEvaluator(CONDITIONS, {}).text(node) == text
