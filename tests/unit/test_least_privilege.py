"""What the template lets functions do: named resources, logs encrypted and forgotten, no debugging in production."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = load_template()
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = functions(TEMPLATE)
# AWS knows no resources for these: interfaces that are yet to be made, descriptions, and traces.
NAMELESS = ("ec2:", "xray:")


def _alternatives(node: Any) -> Iterator[Any]:
    """Every value that a node may have, whatever the conditions."""
    if isinstance(node, dict) and set(node) == {"Fn::If"}:
        for child in node["Fn::If"][1:]:
            yield from _alternatives(child)
    elif node != {"Ref": "AWS::NoValue"}:
        yield node


def _statements(policies: list[Any]) -> Iterator[dict[str, Any]]:
    for policy in policies:
        for document in _alternatives(policy):
            for statement in document["Statement"]:
                yield from _alternatives(statement)


def _listed(value: Any) -> list[Any]:
    return [one for item in (value if isinstance(value, list) else [value]) for one in _alternatives(item)]


def _boundary() -> list[dict[str, Any]]:
    return list(_statements([RESOURCES["FunctionBoundary"]["Properties"]["PolicyDocument"]]))


def _accepted(rule: str, **given: str) -> bool:
    return ConditionEvaluator(TEMPLATE, given).accepts(rule)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_what_it_may_touch(name: str) -> None:
    """One role for each function, and in its policies no resource but those that a parameter names."""
    assert "Role" not in FUNCTIONS[name]
    for statement in _statements(FUNCTIONS[name].get("Policies", [])):
        assert statement["Effect"] == "Allow"
        assert all(set(resource) == {"Ref"} for resource in _listed(statement["Resource"])), statement
        assert all("*" not in action for action in _listed(statement["Action"])), statement


def test_every_role_has_the_boundary() -> None:
    """AWS's policies for logs, networks and traces say `*`; the boundary says what that is."""
    assert [name for name, one in FUNCTIONS.items() if one["PermissionsBoundary"] != {"Ref": "FunctionBoundary"}] == []
    for statement in _boundary():
        actions = _listed(statement["Action"])
        assert all("*" not in action for action in actions)
        if _listed(statement["Resource"]) == ["*"]:
            assert all(action.startswith(NAMELESS) for action in actions)
    (logs,) = (one for one in _boundary() if "logs:PutLogEvents" in one["Action"])
    assert logs["Resource"]["Fn::Sub"].endswith(":log-group:/aws/lambda/${AWS::StackName}-*")


def test_the_boundary_takes_no_function_what_its_policy_gives() -> None:
    """What is in a policy and not in the boundary is allowed to nobody."""

    def allowed(statements: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {
            (action, json.dumps(resource))
            for one in statements
            for action in _listed(one["Action"])
            for resource in _listed(one["Resource"])
        }

    wanted = [one for function in FUNCTIONS.values() for one in _statements(function.get("Policies", []))]
    assert wanted
    assert allowed(wanted) - allowed(_boundary()) == set()


def test_the_owner_s_secret_is_for_migrations_alone() -> None:
    """No other function may read it, or is told it."""
    for name, function in FUNCTIONS.items():
        mentions = json.dumps([function.get("Policies", []), function["Environment"]])
        assert ("MigrationDatabase" in mentions) == (name == "MigrateDatabaseFunction"), name
    given = FUNCTIONS["MigrateDatabaseFunction"]["Environment"]["Variables"]
    for variable, parameter in (("DATABASE_URL", "DatabaseUrl"), ("DATABASE_SECRET_ARN", "DatabaseSecretArn")):
        assert given[variable] == {"Fn::If": ["MigratesAsOwner", {"Ref": f"Migration{parameter}"}, {"Ref": parameter}]}


def test_what_is_kept_is_encrypted_and_forgotten() -> None:
    """Every log group has an end and the key, if there is one; so has every function's environment."""
    key = {"Fn::If": ["HasKey", {"Ref": "KmsArn"}, {"Ref": "AWS::NoValue"}]}
    assert [name for name, one in FUNCTIONS.items() if one["KmsKeyArn"] != key] == []
    groups = {name: one["Properties"] for name, one in RESOURCES.items() if one["Type"] == "AWS::Logs::LogGroup"}
    assert {function["LoggingConfig"]["LogGroup"]["Ref"] for function in FUNCTIONS.values()} < groups.keys()
    for group in groups.values():
        assert (group["RetentionInDays"], group["KmsKeyId"]) == ({"Ref": "LogRetentionDays"}, key)


def test_the_template_makes_nothing_else_that_keeps_data() -> None:
    """A bucket, a queue or a table would need encryption of its own: say so here when there is one."""
    assert {one["Type"] for one in RESOURCES.values()} <= {
        "AWS::CloudWatch::Alarm",
        "AWS::IAM::ManagedPolicy",
        "AWS::Logs::LogGroup",
        "AWS::Serverless::Api",
        "AWS::Serverless::Function",
        "AWS::Serverless::LayerVersion",
        "AWS::Lambda::Permission",
        "AWS::ApiGateway::GatewayResponse",
    }


def test_access_logs_have_neither_tokens_nor_user_ids() -> None:
    """What API Gateway writes of a request: no header, no query, no body, and the path as the template has it."""
    condition, setting, otherwise = RESOURCES["Api"]["Properties"]["AccessLogSetting"]["Fn::If"]
    assert (condition, otherwise) == ("LogsAccess", {"Ref": "AWS::NoValue"})
    assert json.loads(setting["Format"]) == {
        "requestId": "$context.requestId",
        "time": "$context.requestTime",
        "caller": "$context.authorizer.principalId",
        "sourceIp": "$context.identity.sourceIp",
        "method": "$context.httpMethod",
        "path": "$context.resourcePath",
        "status": "$context.status",
        "latency": "$context.responseLatency",
        "error": "$context.error.responseType",
    }
    assert not any(one.get("DataTraceEnabled") for one in RESOURCES["Api"]["Properties"]["MethodSettings"])


@pytest.mark.parametrize(
    "stage", ["prod", "production", "live", "Prod", "PROD", "Production", "LIVE", "prd", "v1", "eu"]
)
def test_the_debug_route_stays_off_in_production(stage: str) -> None:
    """D4: CloudFormation refuses the stack; a stage that it does not know counts as production."""
    assert not _accepted("NoDebuggingInProduction", InboxEnabled="true", Stage=stage)
    assert _accepted("NoDebuggingInProduction", InboxEnabled="false", Stage=stage)


@pytest.mark.parametrize("stage", ["local", "dev", "test", "staging"])
def test_the_debug_route_can_be_had_elsewhere(stage: str) -> None:
    """D4: also on the local stack."""
    assert _accepted("NoDebuggingInProduction", InboxEnabled="true", Stage=stage)


def test_a_stack_as_it_is_has_no_debug_route() -> None:
    """D4: the defaults are a production stack's."""
    parameters = TEMPLATE["Parameters"]
    assert (parameters["InboxEnabled"]["Default"], parameters["Stage"]["Default"]) == ("false", "prod")


@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_the_owner_is_given_in_one_way_or_not_at_all(url: str, arn: str) -> None:
    """Then migrations run as the functions do, as in an installation that has one role."""
    accepted = _accepted("OneWayToMigrate", MigrationDatabaseUrl=url, MigrationDatabaseSecretArn=arn)
    assert accepted == (not (url.strip() and arn))


def test_every_rule_says_what_to_do() -> None:
    """It is all that a person sees of a refused deployment."""
    rules = TEMPLATE["Rules"].values()
    assert all(one["AssertDescription"].endswith(".") for rule in rules for one in rule["Assertions"])
