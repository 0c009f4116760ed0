"""Permissions, encryption and retention in the template, and the debug route in production."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.errors import ConfigError
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = load_template()
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = functions(TEMPLATE)
# Actions that do not support named resources.
WITHOUT_RESOURCES = ("ec2:", "xray:")
ARN = "arn:aws:secretsmanager:eu-central-1:1:secret:s"
SECRETS = [name for name in TEMPLATE["Parameters"] if name.endswith("SecretArn")]


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
        resources = _as_list(statement["Resource"])
        if statement["Action"] == "rds-db:connect":  # one user of one database
            assert all(re.search(r":dbuser:\$\{DatabaseResourceId\}/\w+$", one["Fn::Sub"]) for one in resources), (
                statement
            )
        else:
            assert all(set(resource) == {"Ref"} for resource in resources), statement
        assert all("*" not in action for action in _as_list(statement["Action"])), statement


def test_every_role_has_the_permissions_boundary() -> None:
    """The managed policies of AWS for logs, networks and traces use `*`; the boundary limits them."""
    assert all(function["PermissionsBoundary"] == {"Ref": "FunctionBoundary"} for function in FUNCTIONS.values())
    for statement in _boundary():
        actions = _as_list(statement["Action"])
        assert all("*" not in action for action in actions)
        if _as_list(statement["Resource"]) == ["*"]:
            assert all(action.startswith(WITHOUT_RESOURCES) for action in actions)


def test_boundary_fits_this_stack_only() -> None:
    """No role can write the logs of a stack with a longer name, or use a key for secrets and topics of other stacks."""
    (logs,) = (statement for statement in _boundary() if "logs:PutLogEvents" in statement["Action"])
    groups = {function["LoggingConfig"]["LogGroup"]["Ref"] for function in FUNCTIONS.values()}
    assert {resource["Fn::GetAtt"][0] for resource in logs["Resource"]} == groups
    secrets, topics, environments = (
        statement for statement in _boundary() if "kms:Decrypt" in _as_list(statement["Action"])
    )
    (secret_arns,) = secrets["Condition"]["StringEquals"].values()
    assert {arn["Ref"] for arn in _as_list(secret_arns)} == {
        "DatabaseSecretArn",
        "MigrationDatabaseSecretArn",
        "ClientsDatabaseSecretArn",
        "NatsSecretArn",
        "TopologyNatsSecretArn",
        "WebhookSecretArn",
    }
    assert topics["Condition"]["StringEquals"] == {"kms:EncryptionContext:aws:sns:topicArn": {"Ref": "SnsTopicArn"}}
    assert environments["Resource"] == {"Ref": "KmsArn"}
    (network,) = (statement for statement in _boundary() if "ec2:CreateNetworkInterface" in statement["Action"])
    assert network["Condition"] == {"Null": {"lambda:SourceFunctionArn": "true"}}


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


@pytest.mark.parametrize("secret", SECRETS)
def test_boundary_allows_a_secret_that_is_the_only_one(secret: str) -> None:
    """A webhook's secret, for example, can be read although all other credentials come from elsewhere."""
    statements = RESOURCES["FunctionBoundary"]["Properties"]["PolicyDocument"]["Statement"]
    conditions = {
        statement["Fn::If"][0]
        for statement in statements
        if "Fn::If" in statement and statement["Fn::If"][1]["Sid"] in {"Secrets", "KeysOfSecrets"}
    }
    assert conditions == {"HasAnySecret"}
    assert ConditionEvaluator(TEMPLATE, {secret: ARN}).holds({"Condition": "HasAnySecret"})
    assert not ConditionEvaluator(TEMPLATE, {}).holds({"Condition": "HasAnySecret"})


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


@pytest.mark.parametrize("administration", ["ManageClientsFunction", "OperateClientsFunction"])
def test_only_the_administration_of_clients_may_read_their_secret(administration: str) -> None:
    """G3: it reads no other database secret, and it has no other database credentials if that one is missing."""
    for name, function in FUNCTIONS.items():
        mentions = json.dumps([function.get("Policies", []), function["Environment"]])
        allowed = name in {"ManageClientsFunction", "OperateClientsFunction"}
        assert ("ClientsDatabase" in mentions) == allowed, name
    manage_clients = FUNCTIONS[administration]
    environment = manage_clients["Environment"]["Variables"]
    assert environment["DATABASE_URL"] == {"Ref": "ClientsDatabaseUrl"}
    assert environment["DATABASE_SECRET_ARN"] == {"Ref": "ClientsDatabaseSecretArn"}
    (statement, login) = _statements(manage_clients["Policies"])
    assert login["Resource"]["Fn::Sub"].endswith("/grantwire_clients_service")
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
        "AWS::CloudWatch::Dashboard",
        "AWS::Lambda::Permission",
        "AWS::ApiGateway::Account",
        "AWS::ApiGateway::BasePathMapping",
        "AWS::ApiGateway::DomainName",
        "AWS::ApiGateway::GatewayResponse",
        "AWS::IAM::Role",
        "AWS::WAFv2::WebACLAssociation",
    }


def test_log_groups_outlive_the_stack() -> None:
    """G7: deleting the stack does not delete the evidence. A failed first deployment leaves no log group."""
    groups = [resource for resource in RESOURCES.values() if resource["Type"] == "AWS::Logs::LogGroup"]
    assert {(group["DeletionPolicy"], group["UpdateReplacePolicy"]) for group in groups} == {
        ("RetainExceptOnCreate", "Retain")
    }


def test_access_logs_are_on_by_default_with_the_role_that_they_need() -> None:
    """G7: a parameter switches them off. The role is a setting of the account, which a stack can leave alone."""
    conditions = {
        values: [ConditionEvaluator(TEMPLATE, dict(values)).holds({"Condition": name}) for name in names]
        for names in [("LogsAccess", "CreatesAccessLogRole")]
        for values in [(), (("AccessLogs", "off"),), (("AccessLogs", "with-existing-role"),)]
    }
    assert list(conditions.values()) == [[True, True], [False, False], [True, False]]
    assert RESOURCES["ApiAccessLogs"]["Condition"] == "LogsAccess"
    account, role = RESOURCES["AccessLogAccount"], RESOURCES["AccessLogRoleOfAccount"]
    assert account["Condition"] == role["Condition"] == "CreatesAccessLogRole"
    assert account["Properties"]["CloudWatchRoleArn"] == {"Fn::GetAtt": ["AccessLogRoleOfAccount", "Arn"]}
    assert account["DeletionPolicy"] == role["DeletionPolicy"] == "RetainExceptOnCreate"
    (tag,) = RESOURCES["ApiAccessLogs"]["Properties"]["Tags"]
    assert tag["Value"]["Fn::If"][:2] == ["CreatesAccessLogRole", {"Ref": "AccessLogAccount"}]  # the role comes first


def test_endpoint_requires_tls_1_2_or_newer() -> None:
    """Without a security policy, a regional REST API accepts TLS 1.0."""
    api = RESOURCES["Api"]["Properties"]
    assert api["SecurityPolicy"].startswith("SecurityPolicy_TLS13_1_2_PFS_")
    assert api["EndpointAccessMode"] == "STRICT"


def test_sources_can_be_limited() -> None:
    """Addresses outside the list are denied, whatever the authorizer says. Without a list, nothing is denied."""
    everyone, (condition, outside, otherwise) = (
        statement.get("Fn::If", statement)
        for statement in RESOURCES["Api"]["Properties"]["Auth"]["ResourcePolicy"]["CustomStatements"]
    )
    assert (everyone["Effect"], "Condition" in everyone) == ("Allow", False)
    assert (condition, otherwise) == ("LimitsSources", {"Ref": "AWS::NoValue"})
    assert outside["Effect"] == "Deny"
    assert outside["Condition"] == {"NotIpAddress": {"aws:SourceIp": {"Ref": "SourceAllowList"}}}
    assert outside["Resource"] == everyone["Resource"] == "execute-api:/*"


def test_web_acl_is_associated_with_the_stage_by_condition() -> None:
    """A web ACL belongs to the account; the template only refers to it."""
    association = RESOURCES["ApiWebAcl"]
    assert association["Condition"] == "HasWebAcl"
    assert association["Properties"]["WebACLArn"] == {"Ref": "WebAclArn"}
    assert association["Properties"]["ResourceArn"]["Fn::Sub"].endswith("/restapis/${Api}/stages/${Api.Stage}")


@pytest.mark.parametrize(
    "aws",
    [{"SubnetIds": "a,b"}, *({secret: ARN} for secret in SECRETS)],
    ids=lambda parameters: next(iter(parameters)),
)
@pytest.mark.parametrize(
    "unsafe",
    [
        {"Stage": "local"},
        {"DatabaseUrl": "postgresql://h"},
        {"MigrationDatabaseUrl": "postgresql://h"},
        {"ClientsDatabaseUrl": "postgresql://h"},
        {"NatsUrl": "x"},
        {"TopologyNatsUrl": "x"},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_clear_text_is_refused_on_aws(aws: dict[str, str], unsafe: dict[str, str]) -> None:
    """Subnets or secrets mean AWS: no plaintext connections, and no passwords in parameters."""
    rule = "NothingInClearTextOnAws"
    assert _accepts(rule, **aws)
    assert _accepts(rule, **{name: " " for name in unsafe if name != "Stage"}, **aws)
    assert _accepts(rule, **unsafe)
    assert not _accepts(rule, **unsafe, **aws)


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


@pytest.mark.parametrize("source", ["MigrationDatabase", "ClientsDatabase", "TopologyNats"])
@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_at_most_one_source_of_optional_credentials_is_allowed(source: str, url: str, arn: str) -> None:
    """G3: without one, migrations and streams use those of the functions, and manage_clients does not start."""
    given = {f"{source}Url": url, f"{source}SecretArn": arn}
    assert _accepts("NothingInClearTextOnAws", **given) == (not (url.strip() and arn))


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
