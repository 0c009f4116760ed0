"""Permissions, encryption and retention in the template, and the debug route in production."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import ConfigError
from grantwire.runtime.clients import ClientsRuntime
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = load_template()
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = functions(TEMPLATE)
# Actions that do not support named resources.
WITHOUT_RESOURCES = ("ec2:", "xray:")


def _alternatives(node: Any) -> Iterator[Any]:
    """Yield every value that a node can have, for all conditions."""
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


def _as_list(value: Any) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    return [alternative for item in items for alternative in _alternatives(item)]


def _boundary() -> list[dict[str, Any]]:
    return list(_statements([RESOURCES["FunctionBoundary"]["Properties"]["PolicyDocument"]]))


def _accepts(rule: str, **parameters: str) -> bool:
    return ConditionEvaluator(TEMPLATE, parameters).accepts(rule)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_policies_of_a_function_name_their_resources(name: str) -> None:
    """Each function has a role of its own, and its policies contain only resources from parameters."""
    assert "Role" not in FUNCTIONS[name]
    for statement in _statements(FUNCTIONS[name].get("Policies", [])):
        assert statement["Effect"] == "Allow"
        assert all(set(resource) == {"Ref"} for resource in _as_list(statement["Resource"])), statement
        assert all("*" not in action for action in _as_list(statement["Action"])), statement


def test_every_role_has_the_permissions_boundary() -> None:
    """The managed policies of AWS for logs, networks and traces use `*`; the boundary limits them."""
    assert all(function["PermissionsBoundary"] == {"Ref": "FunctionBoundary"} for function in FUNCTIONS.values())
    for statement in _boundary():
        actions = _as_list(statement["Action"])
        assert all("*" not in action for action in actions)
        if _as_list(statement["Resource"]) == ["*"]:
            assert all(action.startswith(WITHOUT_RESOURCES) for action in actions)
    (logs,) = (statement for statement in _boundary() if "logs:PutLogEvents" in statement["Action"])
    assert logs["Resource"]["Fn::Sub"].endswith(":log-group:/aws/lambda/${AWS::StackName}-*")


def test_boundary_allows_everything_that_the_policies_allow() -> None:
    """A permission that is missing in the boundary has no effect."""

    def allowed(statements: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {
            (action, json.dumps(resource))
            for statement in statements
            for action in _as_list(statement["Action"])
            for resource in _as_list(statement["Resource"])
        }

    granted = [item for function in FUNCTIONS.values() for item in _statements(function.get("Policies", []))]
    assert granted
    assert allowed(granted) - allowed(_boundary()) == set()


def test_only_migrate_database_may_read_the_secret_of_the_owner() -> None:
    """No other function has permission to read it, or has its ARN."""
    for name, function in FUNCTIONS.items():
        mentions = json.dumps([function.get("Policies", []), function["Environment"]])
        assert ("MigrationDatabase" in mentions) == (name == "MigrateDatabaseFunction"), name
    environment = FUNCTIONS["MigrateDatabaseFunction"]["Environment"]["Variables"]
    for variable, parameter in (("DATABASE_URL", "DatabaseUrl"), ("DATABASE_SECRET_ARN", "DatabaseSecretArn")):
        assert environment[variable] == {
            "Fn::If": ["MigratesAsOwner", {"Ref": f"Migration{parameter}"}, {"Ref": parameter}]
        }


def test_only_manage_clients_may_read_the_secret_for_clients() -> None:
    """G3: it reads no other database secret, and it has no other database credentials if that one is missing."""
    for name, function in FUNCTIONS.items():
        mentions = json.dumps([function.get("Policies", []), function["Environment"]])
        assert ("ClientsDatabase" in mentions) == (name == "ManageClientsFunction"), name
    manage_clients = FUNCTIONS["ManageClientsFunction"]
    environment = manage_clients["Environment"]["Variables"]
    assert environment["DATABASE_URL"] == {"Ref": "ClientsDatabaseUrl"}
    assert environment["DATABASE_SECRET_ARN"] == {"Ref": "ClientsDatabaseSecretArn"}
    (statement,) = _statements(manage_clients["Policies"])
    assert (statement["Action"], statement["Resource"]) == (
        "secretsmanager:GetSecretValue",
        {"Ref": "ClientsDatabaseSecretArn"},
    )


def test_log_groups_and_environments_are_encrypted_and_logs_expire() -> None:
    """Every log group has a retention. Log groups and environments use the KMS key if there is one."""
    key = {"Fn::If": ["HasKey", {"Ref": "KmsArn"}, {"Ref": "AWS::NoValue"}]}
    assert all(function["KmsKeyArn"] == key for function in FUNCTIONS.values())
    groups = {
        name: resource["Properties"]
        for name, resource in RESOURCES.items()
        if resource["Type"] == "AWS::Logs::LogGroup"
    }
    assert {function["LoggingConfig"]["LogGroup"]["Ref"] for function in FUNCTIONS.values()} < groups.keys()
    for group in groups.values():
        assert (group["RetentionInDays"], group["KmsKeyId"]) == ({"Ref": "LogRetentionDays"}, key)


def test_template_has_no_other_resources_that_store_data() -> None:
    """A bucket, a queue or a table would need its own encryption; list it here when there is one."""
    assert {resource["Type"] for resource in RESOURCES.values()} <= {
        "AWS::CloudWatch::Alarm",
        "AWS::IAM::ManagedPolicy",
        "AWS::Logs::LogGroup",
        "AWS::Serverless::Api",
        "AWS::Serverless::Function",
        "AWS::Serverless::LayerVersion",
        "AWS::Lambda::Permission",
        "AWS::ApiGateway::GatewayResponse",
    }


def test_access_logs_contain_neither_tokens_nor_user_ids() -> None:
    """They contain no header, no query and no body, and the route instead of the path."""
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
    assert not any(setting.get("DataTraceEnabled") for setting in RESOURCES["Api"]["Properties"]["MethodSettings"])


@pytest.mark.parametrize(
    "stage", ["prod", "production", "live", "Prod", "PROD", "Production", "LIVE", "prd", "v1", "eu"]
)
def test_debug_route_cannot_be_enabled_in_production(stage: str) -> None:
    """D4: CloudFormation rejects the stack. An unknown stage counts as production."""
    assert not _accepts("NoDebuggingInProduction", InboxEnabled="true", Stage=stage)
    assert _accepts("NoDebuggingInProduction", InboxEnabled="false", Stage=stage)


@pytest.mark.parametrize("stage", ["local", "dev", "test", "staging"])
def test_debug_route_can_be_enabled_in_other_stages(stage: str) -> None:
    """D4: also on the local stack."""
    assert _accepts("NoDebuggingInProduction", InboxEnabled="true", Stage=stage)


def test_debug_route_is_disabled_by_default() -> None:
    """D4: the defaults are those of a production stack."""
    parameters = TEMPLATE["Parameters"]
    assert (parameters["InboxEnabled"]["Default"], parameters["Stage"]["Default"]) == ("false", "prod")


@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_at_most_one_source_of_owner_credentials_is_allowed(url: str, arn: str) -> None:
    """Without one, migrations use the credentials of the functions."""
    accepted = _accepts("AtMostOneMigrationSource", MigrationDatabaseUrl=url, MigrationDatabaseSecretArn=arn)
    assert accepted == (not (url.strip() and arn))


@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_at_most_one_source_of_credentials_for_clients_is_allowed(url: str, arn: str) -> None:
    """G3: without one, manage_clients does not start and says why."""
    accepted = _accepts("AtMostOneClientsSource", ClientsDatabaseUrl=url, ClientsDatabaseSecretArn=arn)
    assert accepted == (not (url.strip() and arn))


def test_manage_clients_without_credentials_names_the_parameter() -> None:
    """G3: it does not use the credentials of the other functions instead."""
    environ = {"DATABASE_URL": " ", "DATABASE_SECRET_ARN": "", "TOKEN_ENVIRONMENT": "live"}
    with pytest.raises(ConfigError) as caught:
        ClientsRuntime.build(environ)
    assert "set ClientsDatabaseSecretArn of the stack" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ClientsRuntime.build(environ | {"DATABASE_URL": "postgresql://h/d", "TOKEN_ENVIRONMENT": "?"})
    assert "ClientsDatabaseSecretArn" not in str(caught.value)


def test_every_rule_has_a_description() -> None:
    """It is the only explanation of a rejected deployment."""
    assertions = [assertion for rule in TEMPLATE["Rules"].values() for assertion in rule["Assertions"]]
    assert all(assertion["AssertDescription"].endswith(".") for assertion in assertions)
