"""The template against the code it wires: events, variables, timeouts, schedules, permissions, parameters."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

from grantwire.clients.commands import ClientCommand
from grantwire.clients.scopes import ROUTES, Scope
from grantwire.clients.tokens import Token
from grantwire.database import DatabaseSettings
from grantwire.entrypoints.request import Request
from grantwire.errors import ConfigError, UnauthenticatedError
from grantwire.jetstream.settings import NatsSettings
from grantwire.read_model.commands import RebuildCommand
from grantwire.runtime.api import ApiSettings
from grantwire.runtime.bridge import BridgeSettings
from grantwire.runtime.clients import CallerSettings
from grantwire.runtime.delivery import DeliverySettings
from grantwire.runtime.migration import MigrationSettings
from grantwire.runtime.notifications import NotificationListSettings
from grantwire.runtime.rebuild import RebuildSettings
from grantwire.runtime.recorder import RecorderSettings
from grantwire.runtime.redrive import RedriveSettings
from grantwire.runtime.relay import RelaySettings
from grantwire.runtime.sweep import SweepSettings
from grantwire.settings import load, parse_duration, variables
from grantwire.workers.budget import Budget
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template
from tests.support.paths import FUNCTIONS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s" * 43
GATEWAY_LIMIT = 29
TEMPLATE = load_template()
PARAMETERS: dict[str, Any] = TEMPLATE["Parameters"]
RESOURCES: dict[str, Any] = {
    properties["CodeUri"].rstrip("/").removeprefix("functions/"): properties
    for properties in functions(TEMPLATE).values()
}
SETTINGS: dict[str, type] = {
    "authorize_caller": CallerSettings,
    "manage_clients": CallerSettings,
    "grant": ApiSettings,
    "revoke": ApiSettings,
    "query": DatabaseSettings,
    "show_summary": DatabaseSettings,
    "show_inbox": NotificationListSettings,
    "migrate_database": MigrationSettings,
    "relay_outbox": RelaySettings,
    "bridge_events": BridgeSettings,
    "deliver_notifications": DeliverySettings,
    "record_advisories": RecorderSettings,
    "sweep_retention": SweepSettings,
    "redrive_dead_letters": RedriveSettings,
    "rebuild_read_model": RebuildSettings,
}
SCHEDULED = {
    "relay_outbox": "RelaySchedule",
    "bridge_events": "BridgeSchedule",
    "deliver_notifications": "DeliverySchedule",
    "record_advisories": "RecorderSchedule",
    "sweep_retention": "SweepSchedule",
}


def _events(name: str) -> list[dict[str, Any]]:
    return list(RESOURCES[name].get("Events", {}).values())


def _is_route(name: str) -> bool:
    return any(event["Type"] == "Api" for event in _events(name))


def _references(node: Any) -> Iterator[str]:
    """Every name that `Ref`, `Sub`, `If` and the like mention below a node."""
    if isinstance(node, list):
        for child in node:
            yield from _references(child)
    if not isinstance(node, dict):
        return
    for name, child in node.items():
        if name in {"Ref", "Condition"} and isinstance(child, str):
            yield child
        elif name == "Fn::Sub":
            yield from re.findall(r"\$\{([A-Za-z0-9]+)\}", child)
        elif name == "Fn::If":
            yield child[0]
            yield from _references(child[1:])
        else:
            yield from _references(child)


def _statements(name: str) -> list[dict[str, Any]]:
    """What a function's policies allow, each with the condition under which it does."""
    found = []
    for policy in RESOURCES[name]["Policies"]:
        condition, document, otherwise = policy["Fn::If"]
        assert otherwise == {"Ref": "AWS::NoValue"}
        found += [{**one, "If": condition} for one in document["Statement"]]
    return found


def _secret_variables(kind: type, prefix: str = "") -> Iterator[str]:
    """The variables that the code itself never shows."""
    for item in fields(kind):
        if "group" in item.metadata:
            yield from _secret_variables(item.metadata["group"], prefix + item.metadata["prefix"])
        elif not item.repr:
            yield prefix + item.metadata["variable"].name


def _accepted(rule: str, **given: str) -> bool:
    return ConditionEvaluator(TEMPLATE, given).accepts(rule)


def test_sam_merges_globals_as_these_tests_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests below look at is what SAM gives CloudFormation, override by override."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    packaged = json.loads(json.dumps(TEMPLATE))  # plain, as `sam build` writes it: SAM changes what it translates
    for resource in packaged["Resources"].values():
        for content in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
            resource["Properties"][content] = "s3://bucket/key"
    translated = transform(packaged, {}, SimpleNamespace(load=dict))["Resources"]
    for name, properties in functions(TEMPLATE).items():
        made = translated[name]["Properties"]
        for key in ("Environment", "LoggingConfig", "Timeout", "KmsKeyArn", "VpcConfig"):
            assert made[key] == properties[key], (name, key)
        assert translated[f"{name}Role"]["Properties"]["PermissionsBoundary"] == properties["PermissionsBoundary"]


def test_every_folder_is_a_function_and_every_function_a_folder() -> None:
    """One folder, one Lambda, one handler."""
    folders = {folder.name for folder in FUNCTIONS.iterdir() if (folder / "handler.py").exists()}
    assert folders == RESOURCES.keys() == SETTINGS.keys()
    assert folders == {path.stem for path in (ROOT / "infra" / "events").glob("*.json")}


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_says_what_it_is_and_has_an_event_to_try_it_with(name: str) -> None:
    """S2: `sam local invoke` takes infra/events/NAME.json."""
    assert RESOURCES[name]["Description"]
    event = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    if _is_route(name):
        route = next(one["Properties"] for one in _events(name) if one["Properties"]["Method"] != "any")
        request = Request.from_api_gateway(event)
        assert request.route == f"{route['Method'].upper()} {route['Path']}"
        request.require_scope(ROUTES[request.route])
    elif name in SCHEDULED and name != "sweep_retention":
        assert event == {"budget": "3s", "until": "idle"}


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_gets_what_its_settings_read_and_nothing_else(name: str) -> None:
    """A variable that nobody reads is a misunderstanding; one that is missing stops the function."""
    given = set(RESOURCES[name]["Environment"]["Variables"]) - {"POWERTOOLS_LOG_LEVEL"}  # Powertools reads it
    known = {variable.name: variable for variable in variables(SETTINGS[name])}
    assert given <= known.keys()
    required = {name for name, variable in known.items() if variable.default is None and not variable.optional}
    assert required <= given


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_s_timeouts_nest(name: str) -> None:
    """Connect, lock and statement end before the function does, and a route's function before API Gateway."""
    given = RESOURCES[name]["Environment"]["Variables"]
    own = {key: value for key, value in given.items() if isinstance(value, str)}
    database = load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d", **own})
    lock = parse_duration(PARAMETERS["IdempotencyLockWait"]["Default"])
    waits = database.connect_timeout + lock + database.statement_timeout
    timeout = RESOURCES[name]["Timeout"]
    assert waits < timedelta(seconds=timeout)
    assert timeout < GATEWAY_LIMIT or not _is_route(name)


def test_a_rebuild_ends_before_its_function_does() -> None:
    """P2: two passes over the record, or a replay with the budget that nobody has to give, and time to answer."""
    function = RESOURCES["rebuild_read_model"]
    one_pass = parse_duration(function["Environment"]["Variables"]["DATABASE_STATEMENT_TIMEOUT"])
    assert 2 * one_pass < timedelta(seconds=function["Timeout"])
    assert RebuildCommand("stream").budget + timedelta(minutes=1) < timedelta(seconds=function["Timeout"])


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_worker_fires_from_a_schedule_that_is_a_parameter(name: str) -> None:
    """O7: an EventBridge rule, no asynchronous retries, no old events, and time to clean up after the budget."""
    (event,) = _events(name)
    assert event["Type"] == "Schedule"
    assert event["Properties"]["Schedule"] == {"Ref": SCHEDULED[name]}
    assert re.fullmatch(r"rate\(1 (minute|hour)\)", PARAMETERS[SCHEDULED[name]]["Default"])
    assert RESOURCES[name]["EventInvokeConfig"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert RESOURCES[name]["Timeout"] >= 75
    budget = Budget.from_event(json.loads(event["Properties"].get("Input", "{}")), None, clock=lambda: 0.0)
    assert budget.remaining() + 10 <= RESOURCES[name]["Timeout"]


def test_only_kinds_that_every_emulator_serves_are_used() -> None:
    """ADR 5: neither HTTP APIs nor EventBridge Scheduler."""
    kinds = {event["Type"] for name in RESOURCES for event in _events(name)}
    assert kinds == {"Api", "Schedule"}
    resources = {one["Type"] for one in TEMPLATE["Resources"].values()}
    assert not {one for one in resources if re.search(r"HttpApi|ApiGatewayV2|Scheduler", one)}


def test_each_alarm_watches_a_function_of_this_template() -> None:
    """That the function really emits the metric, `tests/integration/test_alarms.py` tries."""
    alarms = [one["Properties"] for one in TEMPLATE["Resources"].values() if one["Type"] == "AWS::CloudWatch::Alarm"]
    assert {alarm["MetricName"] for alarm in alarms} >= {
        "EventsFailed",
        "NotificationsFailed",
        "DeadLettersRecorded",
        "DependencyUnavailable",
        "OldestEventAge",
    }
    for alarm in alarms:
        dimensions = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
        assert dimensions["service"] == "grantwire"
        watched = {None} if alarm["MetricName"] == "DependencyUnavailable" else {*SCHEDULED, "authorize_caller"}
        assert dimensions.get("worker") in watched


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_may_do_what_its_variables_are_for_and_nothing_else(name: str) -> None:
    """Its own role, made of statements for one action on one resource: no managed policy, no shared role."""
    assert "Role" not in RESOURCES[name]
    given = RESOURCES[name]["Environment"]["Variables"]
    wanted = [("HasDatabaseSecret", "secretsmanager:GetSecretValue", "DatabaseSecretArn")]
    if name == "migrate_database":
        wanted = [
            ("HasMigrationSecret", "secretsmanager:GetSecretValue", "MigrationDatabaseSecretArn"),
            ("MigratesWithTheFunctionsSecret", "secretsmanager:GetSecretValue", "DatabaseSecretArn"),
        ]
    if "NATS_SECRET_ARN" in given:
        wanted += [("HasNatsSecret", "secretsmanager:GetSecretValue", "NatsSecretArn")]
    if "NOTIFICATION_SNS_TOPIC_ARN" in given:
        wanted += [("HasSnsTopic", "sns:Publish", "SnsTopicArn")]
    assert _statements(name) == [
        {"Effect": "Allow", "Action": action, "Resource": {"Ref": resource}, "If": condition}
        for condition, action, resource in wanted
    ]
    assert "DatabaseSecretArn" in _references(given)


def test_a_wildcard_resource_has_its_reason_beside_it() -> None:
    """There is none today; one that is needed is explained on its line or the one above."""
    lines = (ROOT / "template.yaml").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if re.match(r"\s*(- )?(Resource|Action):.*\*", line):
            assert "#" in line or above.strip().startswith("#"), line


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_s_log_has_a_group_that_forgets(name: str) -> None:
    """The group that Lambda makes by itself keeps everything for ever."""
    title = f"${{AWS::StackName}}-{name.replace('_', '-')}"
    assert RESOURCES[name]["FunctionName"] == {"Fn::Sub": title}
    group = TEMPLATE["Resources"][RESOURCES[name]["LoggingConfig"]["LogGroup"]["Ref"]]
    assert group["Type"] == "AWS::Logs::LogGroup"
    assert group["Properties"] == {
        "LogGroupName": {"Fn::Sub": f"/aws/lambda/{title}"},
        "RetentionInDays": {"Ref": "LogRetentionDays"},
        "KmsKeyId": {"Fn::If": ["HasKey", {"Ref": "KmsArn"}, {"Ref": "AWS::NoValue"}]},
    }


def test_an_api_function_s_concurrency_can_be_limited() -> None:
    """Each concurrent execution is a database connection; workers are one or two by their schedule."""
    limited = {name for name in RESOURCES if "LimitsApiConcurrency" in _references(RESOURCES[name])}
    assert limited == {name for name in RESOURCES if _is_route(name)} | {"authorize_caller"}


@pytest.mark.parametrize("name", RESOURCES)
def test_a_secret_comes_from_a_parameter_that_is_not_shown(name: str) -> None:
    """What the code keeps out of its logs, CloudFormation keeps out of its console."""
    given = RESOURCES[name]["Environment"]["Variables"]
    variables_given = [given[variable] for variable in _secret_variables(SETTINGS[name]) if variable in given]
    secret = set(_references(variables_given)) & PARAMETERS.keys()
    assert secret
    assert {parameter for parameter in secret if not PARAMETERS[parameter].get("NoEcho")} == set()


def test_no_secret_has_a_default_or_is_given_away() -> None:
    """A NoEcho parameter in an output would be shown after all."""
    hidden = {name for name, one in PARAMETERS.items() if one.get("NoEcho")}
    assert hidden >= {name for name in PARAMETERS if re.search(r"Url|Password|Token$|Key", name)}
    assert {PARAMETERS[name].get("Default", "") for name in hidden} == {""}
    assert not hidden & set(_references(TEMPLATE["Outputs"]))


def test_every_parameter_and_condition_is_used_and_described() -> None:
    """And every parameter stands in one group of the console's form, with what it may be."""
    used = set(_references({key: value for key, value in TEMPLATE.items() if key != "Parameters"}))
    assert used >= PARAMETERS.keys()
    assert used >= TEMPLATE["Conditions"].keys()
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    grouped = [name for group in groups for name in group["Parameters"]]
    assert sorted(grouped) == sorted(PARAMETERS)
    assert all(one["Description"].endswith(".") for one in PARAMETERS.values())
    assert all(one["Description"].endswith(".") for one in TEMPLATE["Outputs"].values())


def test_every_parameter_has_a_default() -> None:
    """What must be given is given in one of two ways, which a rule checks; everything else works as it is."""
    assert {name for name, one in PARAMETERS.items() if "Default" not in one} == set()


@pytest.mark.parametrize("name", RESOURCES)
def test_only_the_local_stage_may_speak_in_clear(name: str) -> None:
    """Neither by a parameter nor by an address: only where Stage is local."""
    given = RESOURCES[name]["Environment"]["Variables"]
    assert TEMPLATE["Conditions"]["IsLocal"] == {"Fn::Equals": [{"Ref": "Stage"}, "local"]}
    assert given["PLAINTEXT_ALLOWED"] == {"Fn::If": ["IsLocal", "true", "false"]}
    assert given["DATABASE_TLS"] == {"Fn::If": ["IsLocal", "off", "verify-full"]}
    assert given.get("NATS_TLS") == ({"Fn::If": ["IsLocal", "off", "verify"]} if "NATS_URL" in given else None)


@pytest.mark.parametrize("url", ["", " ", "tls://n"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:n"])
def test_nats_is_given_in_one_way(url: str, arn: str) -> None:
    """As the database is."""
    try:
        load(NatsSettings, {"NATS_URL": url, "NATS_SECRET_ARN": arn})
        accepted = True
    except ConfigError:
        accepted = False
    assert _accepted("OneWayToNats", NatsUrl=url, NatsSecretArn=arn) == accepted


@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_the_database_is_given_in_one_way(url: str, arn: str) -> None:
    """CloudFormation refuses what the functions refuse when they start; to both, a blank is nothing."""
    try:
        load(DatabaseSettings, {"DATABASE_URL": url, "DATABASE_SECRET_ARN": arn})
        accepted = True
    except ConfigError:
        accepted = False
    assert _accepted("OneWayToTheDatabase", DatabaseUrl=url, DatabaseSecretArn=arn) == accepted
    assert all(one["AssertDescription"] for one in TEMPLATE["Rules"]["OneWayToTheDatabase"]["Assertions"])


def test_every_route_has_a_scope_and_every_scope_s_route_exists() -> None:
    """E5: what is not in `ROUTES` is open to nobody; what is there without a route is a leftover."""
    served = {
        f"{event['Properties']['Method'].upper()} {event['Properties']['Path']}"
        for name in RESOURCES
        for event in _events(name)
        if event["Type"] == "Api" and event["Properties"]["Method"] != "any"
    }
    assert served == ROUTES.keys()
    assert set(Scope) - set(ROUTES.values()) == {Scope.OPERATE}


def test_every_event_of_the_api_is_behind_the_authorizer() -> None:
    """Closed by default: no event names an authorizer of its own, which could be none."""
    auth = TEMPLATE["Resources"]["Api"]["Properties"]["Auth"]
    assert auth.keys() == {"DefaultAuthorizer", "Authorizers"}
    authorizer = auth["Authorizers"][auth["DefaultAuthorizer"]]
    assert authorizer["FunctionArn"] == {"Fn::GetAtt": ["AuthorizeCallerFunction", "Arn"]}
    assert authorizer["FunctionPayloadType"] == "TOKEN"
    assert authorizer["Identity"]["ReauthorizeEvery"] == {"Ref": "AuthorizerCacheSeconds"}
    cache = PARAMETERS["AuthorizerCacheSeconds"]
    assert (cache["Default"], cache["MinValue"], cache["MaxValue"]) == (60, 0, 3600)
    for name in RESOURCES:
        for event in _events(name):
            assert "Auth" not in event["Properties"]


def test_nobody_but_api_gateway_is_let_near_the_authorizer() -> None:
    """SAM's own permission is for this API's authorizers; the template adds none."""
    kinds = {one["Type"] for one in TEMPLATE["Resources"].values()}
    assert "AWS::Lambda::Permission" not in kinds
    for name in ("authorize_caller", "manage_clients"):
        assert RESOURCES[name].keys().isdisjoint({"FunctionUrlConfig", "Events"})


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (f"Bearer {Token('dev', '0123456789ab', SECRET).text}", True),
        (f"bearer   {Token('a' * 16, 'abcdefghijkl', SECRET).text}", True),
        (Token("dev", "0123456789ab", SECRET).text, False),
        (f"Bearer {Token('dev', '0123456789ab', SECRET).text}x", False),
        (f"Bearer {Token('dev', '0123456789ab', SECRET).text}\n", False),
        (f"Bearer {Token('', '0123456789ab', SECRET).text}", False),
        (f"Bearer {Token('dev', '0123456789AB', SECRET).text}", False),
        ("Bearer ", False),
        ("Basic Z3c6Z3c=", False),
        ("", False),
    ],
)
def test_the_gateway_takes_the_tokens_that_the_authorizer_takes(header: str, accepted: bool) -> None:
    """What the expression refuses is a 401 without an invocation; it must not refuse a valid one."""
    expression = TEMPLATE["Resources"]["Api"]["Properties"]["Auth"]["Authorizers"]["CallerAuthorizer"]["Identity"]
    assert bool(re.fullmatch(expression["ValidationExpression"], header)) == accepted
    try:
        Token.of_header(header)
    except UnauthenticatedError:
        assert not accepted
    else:
        assert accepted


def test_every_route_has_a_limit_of_its_own_and_the_stage_one_for_the_rest() -> None:
    """E5: each limit is a parameter; rate and burst are the same, so that there is one number to think about."""
    limits = {}
    for one in TEMPLATE["Resources"]["Api"]["Properties"]["MethodSettings"]:
        assert one["ThrottlingRateLimit"] == one["ThrottlingBurstLimit"]
        limits[f"{one['HttpMethod']} {one['ResourcePath'][1:].replace('~1', '/')}"] = one["ThrottlingRateLimit"]["Ref"]
    assert limits.keys() == ROUTES.keys() | {"* *"}
    assert len(set(limits.values())) == len(limits)
    assert {PARAMETERS[name]["Type"] for name in limits.values()} == {"Number"}


def test_a_failing_authorizer_is_a_503_and_a_broken_one_a_500() -> None:
    """E5: with the codes that callers know; the first may be tried again."""
    answers = TEMPLATE["Resources"]["Api"]["Properties"]["GatewayResponses"]
    failure, broken = answers["AUTHORIZER_FAILURE"], answers["AUTHORIZER_CONFIGURATION_ERROR"]
    assert (failure["StatusCode"], broken["StatusCode"]) == (503, 500)
    assert failure["ResponseParameters"] == {"Headers": {"Retry-After": "'1'"}}
    bodies = [json.loads(one["ResponseTemplates"]["application/json"]) for one in (failure, broken)]
    assert [body["code"] for body in bodies] == ["UNAVAILABLE", "INTERNAL"]


def test_the_order_to_try_manage_clients_with_changes_nothing() -> None:
    """S2: it lists."""
    event = json.loads((ROOT / "infra" / "events" / "manage_clients.json").read_text())
    assert ClientCommand.parse(event).action == "list"


def test_the_deployment_guide_explains_every_parameter() -> None:
    """docs/deploy.md is what people read while `sam deploy --guided` asks them."""
    guide = (ROOT / "docs" / "deploy.md").read_text()
    assert {name for name in PARAMETERS if f"`{name}`" not in guide} == set()
