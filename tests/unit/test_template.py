"""template.yaml must match the code: events, variables, timeouts, schedules, permissions and parameters."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

from grantwire.api.request import Request
from grantwire.clients.commands import ClientCommand
from grantwire.clients.scopes import CLIENT_ROUTES, PUBLIC_ROUTES, ROUTES
from grantwire.clients.tokens import Token
from grantwire.database import DatabaseSettings
from grantwire.errors import ConfigError, UnauthenticatedError
from grantwire.feed.requests import MAX_WAIT_SECONDS
from grantwire.idempotency.requests import IdempotencySettings
from grantwire.jetstream.settings import NatsSettings
from grantwire.notifications.senders import SenderSettings
from grantwire.operations.problems import WORKERS as STATUS_WORKERS
from grantwire.operations.problems import late_after
from grantwire.settings import load, parse_duration, variables
from grantwire.wiring.authentication import AuthenticationSettings
from grantwire.wiring.callers import CallerSettings
from grantwire.wiring.gateway import GatewaySettings
from grantwire.wiring.routes.check_entitlement import CheckSettings
from grantwire.wiring.routes.entitlements import ApiSettings
from grantwire.wiring.routes.list_changes import ChangesSettings
from grantwire.wiring.routes.operate_clients import ClientOperationsSettings
from grantwire.wiring.routes.operations import OperationsSettings
from grantwire.wiring.routes.show_inbox import NotificationListSettings
from grantwire.wiring.routes.show_summary import SummarySettings
from grantwire.wiring.tasks.configure_streams import ConfigurationSettings
from grantwire.wiring.tasks.migrate_database import MigrationSettings
from grantwire.wiring.workers.bridge_events import BridgeSettings
from grantwire.wiring.workers.deliver_notifications import DeliverySettings
from grantwire.wiring.workers.expire_entitlements import ExpireSettings
from grantwire.wiring.workers.record_advisories import RecorderSettings
from grantwire.wiring.workers.relay_outbox import RelaySettings
from grantwire.wiring.workers.run_operator_commands import OperatorCommandsSettings
from grantwire.wiring.workers.sweep_retention import SweepSettings
from grantwire.workers.budget import Budget
from grantwire.workers.schedule import ScheduleSettings
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import api_routes, function_variables, functions, load_template
from infra.local.stack.deployed import WORKERS
from tests.support.paths import FUNCTIONS, ROOT
from tests.support.workers.deliver_receiver import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.settings import Variable

SECRET = "s" * 43
API_GATEWAY_TIMEOUT_SECONDS = 29
TEMPLATE = load_template()
PARAMETERS: dict[str, Any] = TEMPLATE["Parameters"]
RESOURCES: dict[str, Any] = {
    properties["CodeUri"].rstrip("/").removeprefix("functions/"): properties
    for properties in functions(TEMPLATE).values()
}


@dataclass(frozen=True)
class NoSettings:
    """The settings of a function that reads none."""


SETTINGS: dict[str, type] = {
    "console": NoSettings,
    "authorize_caller": CallerSettings,
    "manage_clients": CallerSettings,
    "grant": ApiSettings,
    "revoke": ApiSettings,
    "extend": ApiSettings,
    "change_batch": ApiSettings,
    "expire_entitlements": ExpireSettings,
    "query": ApiSettings,
    "check_entitlement": CheckSettings,
    "show_summary": SummarySettings,
    "list_changes": ChangesSettings,
    "show_inbox": NotificationListSettings,
    "migrate_database": MigrationSettings,
    "configure_streams": ConfigurationSettings,
    "relay_outbox": RelaySettings,
    "bridge_events": BridgeSettings,
    "deliver_notifications": DeliverySettings,
    "record_advisories": RecorderSettings,
    "sweep_retention": SweepSettings,
    "operations": OperationsSettings,
    "operate_clients": ClientOperationsSettings,
    "run_operator_commands": OperatorCommandsSettings,
}
# They get no credentials of the database.
WITHOUT_DATABASE = {"configure_streams", "console"}
# They serve routes that every caller may use, so they need neither an authorizer nor settings of the gateway.
PUBLIC = {"console"}
# They log in with the role of the administration of clients.
CLIENT_ADMINISTRATION = {"manage_clients", "operate_clients"}
# The parameter or the mapping that has the schedule of each worker, and how long it waits for more work before it ends.
FLOW = {"relay_outbox": "0s", "bridge_events": "3s", "deliver_notifications": "5s"}
IDLE = {"record_advisories": "0s", "expire_entitlements": "0s", "run_operator_commands": "0s"}
SCHEDULED = {*FLOW, *IDLE, "sweep_retention"}
MODES = {
    "always-on": {"WorkerMode": "always-on"},
    "economical": {"WorkerMode": "economical"},
    "every five minutes": {"WorkerMode": "economical", "WorkerMinutes": "5"},
    "local": {"Stage": "local"},
}


def _events(name: str) -> list[dict[str, Any]]:
    return list(RESOURCES[name].get("Events", {}).values())


def _is_route(name: str) -> bool:
    return any(event["Type"] == "Api" for event in _events(name))


def _references(node: Any) -> Iterator[str]:
    """Yield the names that `Ref`, `Sub`, `If` and similar functions refer to below a node."""
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
    """Return the policy statements of a function, each with its condition."""
    statements = []
    for policy in RESOURCES[name].get("Policies", []):
        condition, document, otherwise = policy["Fn::If"]
        assert otherwise == {"Ref": "AWS::NoValue"}
        statements += [{**statement, "If": condition} for statement in document["Statement"]]
    return statements


def _variables(name: str) -> Iterator[Variable[Any]]:
    """Yield the variables that a function reads; a route also reads those of its gateway."""
    yield from variables(SETTINGS[name])
    if _is_route(name) and name not in PUBLIC:
        yield from variables(GatewaySettings)
        yield from variables(AuthenticationSettings)


def _accepts(rule: str, **parameters: str) -> bool:
    return ConditionEvaluator(TEMPLATE, parameters).accepts(rule)


def _accepts_servers(**parameters: str) -> bool:
    return _accepts("ServersAreNamed", **parameters) and _accepts("NothingInClearTextOnAws", **parameters)


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the template that SAM passes to CloudFormation."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    packaged = json.loads(json.dumps(TEMPLATE))  # a copy, because SAM changes its input
    for resource in packaged["Resources"].values():
        for content in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
            resource["Properties"][content] = "s3://bucket/key"
    return dict(transform(packaged, {}, SimpleNamespace(load=dict)))


def test_layer_of_the_library_is_an_output_and_outlives_the_stack(translated: dict[str, Any]) -> None:
    """C14: functions of other stacks use it, for each Python version that the library declares."""
    layer = translated["Outputs"]["IdempotencyLayerArn"]["Value"]["Ref"]
    resource = translated["Resources"][layer]
    assert resource["Type"] == "AWS::Lambda::LayerVersion"
    assert resource["DeletionPolicy"] == "Retain"
    distribution = tomllib.loads((ROOT / "layers" / "idempotency" / "pyproject.toml").read_text())
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(distribution["project"]["classifiers"]))
    assert resource["Properties"]["CompatibleRuntimes"] == [f"python{version}" for version in versions]


@pytest.mark.parametrize(("value", "layers"), [("false", ["CoreLayer"]), ("true", ["CoreLayer", "CredentialsLayer"])])
def test_functions_have_the_layer_for_credentials_files_only_if_asked(
    translated: dict[str, Any], value: str, layers: list[str]
) -> None:
    """X5: it is not even created without the parameter. SAM gives each version of a layer a name of its own."""
    conditions = ConditionEvaluator(translated, {"NatsCredentialsFile": value})
    for name in functions(TEMPLATE):
        refs = [one["Ref"] for one in conditions.choose(translated["Resources"][name]["Properties"]["Layers"])]
        resources = [translated["Resources"][ref] for ref in refs]
        assert [ref[: len(layer)] for ref, layer in zip(refs, layers, strict=True)] == layers
        assert all(conditions.holds({"Condition": one["Condition"]}) for one in resources if "Condition" in one)


def test_sam_merges_globals_like_the_template_loader(translated: dict[str, Any]) -> None:
    """The tests below check the properties that SAM passes to CloudFormation."""
    resources = translated["Resources"]
    for name, properties in functions(TEMPLATE).items():
        result = resources[name]["Properties"]
        for key in ("Environment", "LoggingConfig", "Timeout", "KmsKeyArn", "VpcConfig"):
            assert result[key] == properties[key], (name, key)
        assert resources[f"{name}Role"]["Properties"]["PermissionsBoundary"] == properties["PermissionsBoundary"]


def test_every_folder_is_a_function_and_every_function_has_a_folder() -> None:
    """Each folder has one handler, one Lambda function and one example event."""
    folders = {folder.name for folder in FUNCTIONS.iterdir() if (folder / "handler.py").exists()}
    assert folders == RESOURCES.keys() == SETTINGS.keys()
    assert folders == {path.stem for path in (ROOT / "infra" / "events").glob("*.json")}


@pytest.mark.parametrize("name", RESOURCES)
def test_every_function_has_a_description_and_an_example_event(name: str) -> None:
    """S2: `sam local invoke` uses infra/events/NAME.json."""
    assert RESOURCES[name]["Description"]
    example = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    if _is_route(name):
        route = next(event["Properties"] for event in _events(name) if event["Properties"]["Method"] != "any")
        request = Request.from_api_gateway(example)
        assert request.route == f"{route['Method'].upper()} {route['Path']}"
        if name not in PUBLIC:
            request.require_scope(ROUTES[request.route])
    elif name in SCHEDULED and name != "sweep_retention":
        assert example == {"budget": "3s", "until": "idle"}


@pytest.mark.parametrize("name", RESOURCES)
def test_environment_of_a_function_matches_its_settings(name: str) -> None:
    """A function has every required variable, and no variable that it does not read."""
    provided = set(RESOURCES[name]["Environment"]["Variables"]) - {
        "GRANTWIRE_SETTINGS",  # settings.load reads it
        "POWERTOOLS_LOG_LEVEL",  # Powertools reads these two
        "POWERTOOLS_SERVICE_NAME",
    }
    if name in WITHOUT_DATABASE:  # Globals sets them for every function
        provided = {variable for variable in provided if not variable.startswith("DATABASE_")}
    if name in PUBLIC:  # Globals sets it for every function
        provided.remove("PLAINTEXT_ALLOWED")
    known = {variable.name: variable for variable in _variables(name)}
    assert provided <= known.keys()
    required = {name for name, variable in known.items() if variable.default is None and not variable.optional}
    assert required <= provided


@pytest.mark.parametrize("name", RESOURCES)
def test_timeouts_are_nested(name: str) -> None:
    """Waits for PostgreSQL end before the function does, and the function of a route ends before API Gateway does."""
    environment = RESOURCES[name]["Environment"]["Variables"]
    literals = {key: value for key, value in environment.items() if isinstance(value, str)}
    database = load(DatabaseSettings, literals | {"DATABASE_URL": "postgresql://u@h/d"})
    lock = load(IdempotencySettings, {}).lock_wait
    waits = database.connect_timeout + lock + database.statement_timeout
    timeout = RESOURCES[name]["Timeout"]
    assert waits < timedelta(seconds=timeout)
    assert timeout < API_GATEWAY_TIMEOUT_SECONDS or not _is_route(name)


def test_longest_wait_for_a_change_ends_before_its_function_does() -> None:
    """K9: one connect, the limit of the client, the wait and the last page; API Gateway ends later."""
    function = RESOURCES["list_changes"]
    environment = {"DATABASE_STATEMENT_TIMEOUT": function["Environment"]["Variables"]["DATABASE_STATEMENT_TIMEOUT"]}
    database = load(DatabaseSettings, environment | {"DATABASE_URL": "postgresql://u@h/d"})
    around = database.connect_timeout + 2 * database.statement_timeout
    assert timedelta(seconds=MAX_WAIT_SECONDS) + around < timedelta(seconds=function["Timeout"])
    assert function["Timeout"] < API_GATEWAY_TIMEOUT_SECONDS


def test_rebuild_ends_before_its_function_does() -> None:
    """P2: a pass over the system of record is one statement, which may begin at the end of the worker's budget."""
    function = RESOURCES["run_operator_commands"]
    one_pass = parse_duration(function["Environment"]["Variables"]["DATABASE_STATEMENT_TIMEOUT"])
    for parameters in MODES.values():
        budget = timedelta(seconds=_schedule("run_operator_commands", **parameters)[1].remaining())
        assert budget + one_pass < timedelta(seconds=function["Timeout"])


@pytest.mark.parametrize("name", sorted(SCHEDULED))
def test_worker_starts_on_a_schedule(name: str) -> None:
    """O7: an EventBridge rule without asynchronous retries or old events. The timeout is longer than the budget."""
    (event,) = _events(name)
    assert event["Type"] == "Schedule"
    assert RESOURCES[name]["EventInvokeConfig"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert RESOURCES[name]["Timeout"] >= 75
    for parameters in MODES.values():
        budget = _schedule(name, **parameters)[1]
        assert budget.remaining() + 10 <= RESOURCES[name]["Timeout"]


def test_workers_end_when_idle_as_the_mode_says() -> None:
    """X1: recorder, expiry and commands always; relay, bridge and delivery in the mode economical only."""
    for mode, parameters in MODES.items():
        for name, linger in (FLOW | IDLE).items():
            schedule, budget = _schedule(name, **parameters)
            ends = mode in {"economical", "every five minutes"} or (name in IDLE and mode != "local")
            expected = (True, True, parse_duration(linger).total_seconds()) if ends else (False, True, 0.0)
            assert (budget.until_idle, budget.retries, budget.linger) == expected, (mode, name)
            minutes = "0/5" if mode == "every five minutes" else "*"
            assert schedule == (f"cron({minutes} * * * ? *)" if ends else "rate(1 minute)"), (mode, name)
    assert _schedule("sweep_retention")[0] == "rate(1 hour)"


def test_limits_of_the_status_and_of_alarms_follow_the_mode() -> None:
    """W4, X1: a worker that waits for its next start is not late, and no alarm fires without a fault."""
    for mode, parameters in MODES.items():
        for name in ("operations", "run_operator_commands"):
            settings = load(ScheduleSettings, _resolved(name, "WORKER_MODE", "WORKER_INTERVAL", **parameters))
            for worker in FLOW | IDLE:
                schedule, budget = _schedule(worker, **parameters)
                seconds = 300 if "0/5" in schedule else 60
                assert settings.interval_seconds(worker) == seconds
                assert settings.delay_seconds(worker) == (seconds if budget.until_idle else 0), (mode, worker)
                assert late_after(settings)[worker] == 4 * seconds
        evaluate = ConditionEvaluator(TEMPLATE, parameters).text
        alarms = {name: one["Properties"] for name, one in TEMPLATE["Resources"].items() if name.endswith("Alarm")}
        slow = mode == "every five minutes"
        assert evaluate(alarms["SettledAgeAlarm"]["Threshold"]) == ("360" if slow else "120")
        assert evaluate(alarms["OldestPendingEventAlarm"]["Threshold"]) == ("360" if slow else "120")
        for name in ("ConsumerLag", "OldestPendingEvent", "SettledAge", "WorkersLate", "DependencyUnavailable"):
            assert evaluate(alarms[f"{name}Alarm"]["Period"]) == ("300" if slow else "60"), (mode, name)
    set_by_hand = ConditionEvaluator(TEMPLATE, {"SettledAgeSeconds": "7"}).text
    assert set_by_hand(TEMPLATE["Resources"]["SettledAgeAlarm"]["Properties"]["Threshold"]) == "7"
    assert set_by_hand(TEMPLATE["Resources"]["OldestPendingEventAlarm"]["Properties"]["Threshold"]) == "7"


def test_status_knows_every_worker() -> None:
    """T1: the status reports a worker that does not run."""
    assert set(STATUS_WORKERS) == SCHEDULED


def _schedule(name: str, **parameters: str) -> tuple[str, Budget]:
    """Return the schedule of a worker and the budget of its invocations."""
    (event,) = _events(name)
    evaluate = ConditionEvaluator(TEMPLATE, parameters).text
    event_input = json.loads(evaluate(event["Properties"].get("Input", "{}")) or "{}")
    return evaluate(event["Properties"]["Schedule"]) or "", Budget.from_event(event_input, None, clock=lambda: 0.0)


def _resolved(name: str, *variables: str, **parameters: str) -> dict[str, str]:
    """Return the values of some variables of a function."""
    evaluate = ConditionEvaluator(TEMPLATE, parameters).text
    environment = RESOURCES[name]["Environment"]["Variables"]
    return {variable: evaluate(environment[variable]) or "" for variable in variables}


def test_local_stack_starts_every_scheduled_worker_once() -> None:
    """T1, T3: a schedule first fires after a minute; until then the status would say that a worker has never run."""
    assert {name.replace("-", "_") for name in WORKERS} == SCHEDULED


def test_template_uses_only_resources_that_emulators_support() -> None:
    """ADR 5: neither HTTP APIs nor EventBridge Scheduler."""
    kinds = {event["Type"] for name in RESOURCES for event in _events(name)}
    assert kinds == {"Api", "Schedule"}
    types = {resource["Type"] for resource in TEMPLATE["Resources"].values()}
    assert not {name for name in types if re.search(r"HttpApi|ApiGatewayV2|Scheduler", name)}


def test_every_alarm_watches_a_function_of_the_template() -> None:
    """`tests/integration/test_alarms.py` proves that the function emits the metric."""
    resources = TEMPLATE["Resources"].values()
    every = [resource["Properties"] for resource in resources if resource["Type"] == "AWS::CloudWatch::Alarm"]
    alarms = [alarm for alarm in every if alarm.get("Namespace") == "Grantwire"]  # the next test checks the others
    assert {alarm["MetricName"] for alarm in alarms} >= {
        "EventsFailed",
        "NotificationsFailed",
        "DeadLettersRecorded",
        "DependencyUnavailable",
        "OldestEventAge",
    }
    for alarm in alarms:
        dimensions = {dimension["Name"]: dimension["Value"] for dimension in alarm["Dimensions"]}
        assert dimensions["service"] == {"Ref": "AWS::StackName"}
        anywhere = {"DependencyUnavailable", "LimitsReached", "ChangeFeedLag"}
        workers = {None} if alarm["MetricName"] in anywhere else {*SCHEDULED, "authorize_caller"}
        assert dimensions.get("worker") in workers


def test_alarms_on_a_backlog_also_fire_without_a_worker() -> None:
    """G7: a worker that does not run writes no metric, and the backlog grows unseen."""
    for name, statistic in (("ConsumerLag", "Maximum"), ("OldestPendingEvent", "Maximum"), ("SettledAge", "Minimum")):
        alarm = TEMPLATE["Resources"][f"{name}Alarm"]["Properties"]
        assert (alarm["TreatMissingData"], alarm["Statistic"]) == ("breaching", statistic)
    assert TEMPLATE["Resources"]["ConsumerLagAlarm"]["Properties"]["Threshold"] == {"Ref": "ConsumerLagMessages"}


def test_alarms_of_lambda_and_api_gateway_watch_this_stack() -> None:
    """G7, G12: errors and throttles of every function that not anyone can cause, and 5xx of this stage only."""
    resources = TEMPLATE["Resources"]
    names = {f"FunctionName = '${{{name}}}'" for name in functions(TEMPLATE)}
    # Anyone can cause errors of the authorizer, and start this one and the console many times at once.
    authorizer, console = ({f"FunctionName = '${{{name}Function}}'"} for name in ("AuthorizeCaller", "Console"))
    for alarm, metric, watched in (
        ("FunctionErrorsAlarm", "Errors", names - authorizer),
        ("ThrottlesAlarm", "Throttles", names - authorizer - console),
    ):
        (query,) = resources[alarm]["Properties"]["Metrics"]
        select, *source = query["Expression"]["Fn::Join"][1]
        assert select == f"SELECT SUM({metric})"
        schema, _, condition = " ".join(part["Fn::Sub"] for part in source).partition(" WHERE ")
        assert schema == 'FROM SCHEMA("AWS/Lambda", FunctionName)'
        assert set(condition.split(" OR ")) == watched
    server_errors = resources["ServerErrorsAlarm"]["Properties"]
    assert (server_errors["Namespace"], server_errors["MetricName"]) == ("AWS/ApiGateway", "5XXError")
    api = resources["Api"]["Properties"]
    assert {item["Name"]: item["Value"] for item in server_errors["Dimensions"]} == {
        "ApiName": api["Name"],
        "Stage": api["StageName"],
    }


def test_every_alarm_has_a_section_in_the_runbook() -> None:
    """G7: its description names the section, and the table of the runbook links to it."""
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    for resource in TEMPLATE["Resources"].values():
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            name = resource["Properties"]["AlarmName"]["Fn::Sub"].removeprefix("${AWS::StackName}-")
            section = resource["Properties"]["AlarmDescription"].rpartition("Runbook: ")[2].rstrip(".")
            assert f"\n## {section}\n" in runbook, name
            assert re.search(rf"\| `{name}` \|.*\[{section}\]", runbook), name


def test_values_of_environment_variables_are_text() -> None:
    """CloudFormation converts a number; a local AWS passes it on, and the function does not start."""

    def literals(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from literals(item)
        else:
            yield value

    variables = function_variables(TEMPLATE)
    assert [
        (name, variable, value)
        for name, environment in variables.items()
        for variable, expression in environment.items()
        for value in literals(expression)
        if not isinstance(value, str)
    ] == []


@pytest.mark.parametrize("name", RESOURCES)
def test_permissions_of_a_function_match_its_variables(name: str) -> None:
    """Each function has a role of its own, with statements for one action on one resource and no managed policy."""
    assert "Role" not in RESOURCES[name]
    environment = RESOURCES[name]["Environment"]["Variables"]
    expected = [("HasDatabaseSecret", "secretsmanager:GetSecretValue", "DatabaseSecretArn")]
    if name == "migrate_database":
        expected = [
            ("HasMigrationSecret", "secretsmanager:GetSecretValue", "MigrationDatabaseSecretArn"),
            ("MigratesWithFunctionsSecret", "secretsmanager:GetSecretValue", "DatabaseSecretArn"),
        ]
    if name in CLIENT_ADMINISTRATION:
        expected = [("HasClientsSecret", "secretsmanager:GetSecretValue", "ClientsDatabaseSecretArn")]
    if name == "configure_streams":
        expected = [
            ("HasTopologySecret", "secretsmanager:GetSecretValue", "TopologyNatsSecretArn"),
            ("ConfiguresWithWorkersSecret", "secretsmanager:GetSecretValue", "NatsSecretArn"),
        ]
    elif name in WITHOUT_DATABASE:
        expected = []
    elif "NATS_SECRET_ARN" in environment:
        expected += [("HasNatsSecret", "secretsmanager:GetSecretValue", "NatsSecretArn")]
    if "NOTIFICATION_WEBHOOK_SECRET_ARN" in environment:
        expected += [("HasWebhookSecret", "secretsmanager:GetSecretValue", "WebhookSecretArn")]
    if "NOTIFICATION_SNS_TOPIC_ARN" in environment:
        expected += [("HasSnsTopic", "sns:Publish", "SnsTopicArn")]
    statements = [statement for statement in _statements(name) if statement["Action"] != "rds-db:connect"]
    assert statements == [
        {"Effect": "Allow", "Action": action, "Resource": {"Ref": resource}, "If": condition}
        for condition, action, resource in expected
    ]
    assert _database_logins(name) == _expected_logins(name)
    has_database = name not in WITHOUT_DATABASE
    own = "ClientsDatabase" if name in CLIENT_ADMINISTRATION else "Database"
    assert (f"{own}SecretArn" in _references(environment)) == has_database
    assert (f"{own}Url" in _references(environment)) == has_database


def _database_logins(name: str) -> list[str]:
    """Return the database users that a function may log in as with IAM."""
    statements = [statement for statement in _statements(name) if statement["Action"] == "rds-db:connect"]
    assert {statement["If"] for statement in statements} <= {"LogsInWithIam"}
    return [statement["Resource"]["Fn::Sub"].rpartition("/")[2] for statement in statements]


def _expected_logins(name: str) -> list[str]:
    """J2: the login of each function, as in administrator.sql; no function may use that of another one."""
    if name in WITHOUT_DATABASE:
        return []
    logins = dict.fromkeys(CLIENT_ADMINISTRATION, "grantwire_clients_service") | {"migrate_database": "grantwire"}
    return [logins.get(name, "grantwire_service")]


def test_every_wildcard_has_a_comment() -> None:
    """The reason for a wildcard is on its line or the line above."""
    lines = (ROOT / "template.yaml").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if re.match(r"\s*(- )?(Resource|Action):.*\*(?!\w)", line):
            assert "#" in line or above.strip().startswith("#"), line


@pytest.mark.parametrize("name", RESOURCES)
def test_every_function_has_a_log_group_with_retention(name: str) -> None:
    """A log group that Lambda creates automatically keeps logs for ever."""
    function_name = f"${{AWS::StackName}}-{name.replace('_', '-')}"
    assert RESOURCES[name]["FunctionName"] == {"Fn::Sub": function_name}
    group = TEMPLATE["Resources"][RESOURCES[name]["LoggingConfig"]["LogGroup"]["Ref"]]
    assert group["Type"] == "AWS::Logs::LogGroup"
    assert group["Properties"] == {
        "LogGroupName": {"Fn::Sub": f"/aws/lambda/{function_name}"},
        "RetentionInDays": {"Ref": "LogRetentionDays"},
        "KmsKeyId": {"Fn::If": ["HasKey", {"Ref": "KmsArn"}, {"Ref": "AWS::NoValue"}]},
    }


def test_concurrency_of_api_functions_can_be_limited() -> None:
    """Each concurrent execution uses a database connection. The schedule limits the workers."""
    limited = {name for name in RESOURCES if "LimitsApiConcurrency" in _references(RESOURCES[name])}
    assert limited == {name for name in RESOURCES if _is_route(name)} | {"authorize_caller"}


@pytest.mark.parametrize("name", RESOURCES)
def test_parameters_with_secrets_have_no_echo(name: str) -> None:
    """CloudFormation hides the values that the code keeps out of its logs."""
    environment = RESOURCES[name]["Environment"]["Variables"]
    hidden = [variable.name for variable in variables(SETTINGS[name]) if variable.secret]
    values = [environment[variable] for variable in hidden if variable in environment]
    secret = set(_references(values)) & PARAMETERS.keys()
    assert bool(secret) == (name not in PUBLIC)
    assert {parameter for parameter in secret if not PARAMETERS[parameter].get("NoEcho")} == set()


def test_parameters_with_secrets_have_no_default_and_no_output() -> None:
    """An output would reveal the value of a NoEcho parameter."""
    hidden = {name for name, parameter in PARAMETERS.items() if parameter.get("NoEcho")}
    assert hidden >= {name for name in PARAMETERS if re.search(r"Url|Password|Token$|Key", name)}
    assert {PARAMETERS[name].get("Default", "") for name in hidden} == {""}
    assert not hidden & set(_references(TEMPLATE["Outputs"]))


def test_every_parameter_and_condition_is_used_and_described() -> None:
    """Every parameter has a description and belongs to one group in the console."""
    used = set(_references({key: value for key, value in TEMPLATE.items() if key != "Parameters"}))
    assert used >= PARAMETERS.keys()
    assert used >= TEMPLATE["Conditions"].keys()
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    grouped = [name for group in groups for name in group["Parameters"]]
    assert sorted(grouped) == sorted(PARAMETERS)
    assert all(parameter["Description"].endswith(".") for parameter in PARAMETERS.values())
    assert all(output["Description"].endswith(".") for output in TEMPLATE["Outputs"].values())


def test_every_parameter_has_a_default() -> None:
    """Rules check the parameters that are required in one of two forms."""
    assert {name for name, parameter in PARAMETERS.items() if "Default" not in parameter} == set()


@pytest.mark.parametrize("name", RESOURCES)
def test_only_the_local_stage_allows_plaintext(name: str) -> None:
    """No other parameter or URL can disable TLS."""
    environment = RESOURCES[name]["Environment"]["Variables"]
    assert TEMPLATE["Conditions"]["IsLocal"] == {"Fn::Equals": [{"Ref": "Stage"}, "local"]}
    assert environment["PLAINTEXT_ALLOWED"] == {"Fn::If": ["IsLocal", "true", "false"]}
    assert environment["DATABASE_TLS"] == {"Fn::If": ["IsLocal", "off", "verify-full"]}
    assert environment.get("NATS_TLS") == (
        {"Fn::If": ["IsLocal", "off", "verify"]} if "NATS_URL" in environment else None
    )


@pytest.mark.parametrize("url", ["", " ", "tls://n"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:n"])
def test_exactly_one_source_of_nats_credentials_is_required(url: str, arn: str) -> None:
    """CloudFormation and the settings of the functions accept the same values. A blank counts as empty."""
    try:
        load(NatsSettings, {"NATS_URL": url, "NATS_SECRET_ARN": arn})
        accepted = True
    except ConfigError:
        accepted = False
    database = {"DatabaseSecretArn": arn, "DatabaseUrl": "" if arn else "postgresql://u@h/d"}
    assert _accepts_servers(NatsUrl=url, NatsSecretArn=arn, **database) == accepted


@pytest.mark.parametrize("url", ["", " ", "postgresql://u@h/d"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:s"])
def test_exactly_one_source_of_database_credentials_is_required(url: str, arn: str) -> None:
    """CloudFormation and the settings of the functions accept the same values. A blank counts as empty."""
    try:
        load(DatabaseSettings, {"DATABASE_URL": url, "DATABASE_SECRET_ARN": arn})
        accepted = True
    except ConfigError:
        accepted = False
    nats = {"NatsSecretArn": arn, "NatsUrl": "" if arn else "tls://n"}
    assert _accepts_servers(DatabaseUrl=url, DatabaseSecretArn=arn, **nats) == accepted


@pytest.mark.parametrize("stage", ["local", "prod"])
@pytest.mark.parametrize("sender", ["log", "webhook"])
@pytest.mark.parametrize("arn", ["", "arn:aws:secretsmanager:eu-central-1:1:secret:w"])
@pytest.mark.parametrize(("url", "keys"), [("", ""), (" ", " "), ("http://127.0.0.1:1/", KEY), ("", KEY)])
def test_webhook_is_configured_by_a_secret_outside_the_local_stage(
    stage: str, sender: str, arn: str, url: str, keys: str
) -> None:
    """G5: what CloudFormation accepts for this sender, deliver_notifications accepts, too, unless both are set."""
    accepted = _accepts(
        "WebhookSecretOnAws",
        Stage=stage,
        NotificationSender=sender,
        WebhookSecretArn=arn,
        WebhookUrl=url,
        WebhookKeys=keys,
    )
    assert accepted == (
        (stage == "local" or not (url + keys).strip()) and (sender == "log" or bool(arn or url.strip()))
    )
    environ = {
        "NOTIFICATION_SENDER": sender,
        "NOTIFICATION_WEBHOOK_SECRET_ARN": arn,
        "NOTIFICATION_WEBHOOK_URL": url,
        "NOTIFICATION_WEBHOOK_KEYS": keys,
        "PLAINTEXT_ALLOWED": "true" if stage == "local" else "false",
    }
    if accepted and not (arn and keys.strip()):
        load(SenderSettings, environ)


def test_every_route_has_a_scope() -> None:
    """E5: a route that is not in `ROUTES` is denied or public, and every entry of `ROUTES` has a route."""
    served = {f"{method} {path}" for method, path in api_routes() if method != "ANY"}
    assert served == ROUTES.keys() | CLIENT_ROUTES | PUBLIC_ROUTES
    assert ROUTES.keys().isdisjoint(PUBLIC_ROUTES)


def _literals(value: Any) -> Iterator[object]:
    """Yield the literal values that a value of the template can have."""
    if not isinstance(value, dict):
        yield value
    for branch in value.get("Fn::If", [])[1:] if isinstance(value, dict) else ():
        yield from _literals(branch)


def test_literal_environment_variables_are_text() -> None:
    """A number starts no function on the local stack, whose emulator passes it on as it is."""
    wrong = [
        (name, variable)
        for name, resource in RESOURCES.items()
        for variable, value in resource.get("Environment", {}).get("Variables", {}).items()
        if not all(isinstance(literal, str) for literal in _literals(value))
    ]
    assert wrong == []


def test_every_route_uses_the_authorizer() -> None:
    """No event overrides the default authorizer, except those of public routes."""
    auth = TEMPLATE["Resources"]["Api"]["Properties"]["Auth"]
    assert auth.keys() == {"DefaultAuthorizer", "Authorizers", "ResourcePolicy"}
    authorizer = auth["Authorizers"][auth["DefaultAuthorizer"]]
    assert authorizer["FunctionArn"] == {"Fn::GetAtt": ["AuthorizeCallerFunction", "Arn"]}
    assert authorizer["FunctionPayloadType"] == "TOKEN"
    assert authorizer["Identity"]["ReauthorizeEvery"] == {"Ref": "AuthorizerCacheSeconds"}
    cache = PARAMETERS["AuthorizerCacheSeconds"]
    assert (cache["Default"], cache["MinValue"], cache["MaxValue"]) == (60, 0, 3600)
    for name in RESOURCES:
        for event in _events(name):
            own = {"Authorizer": "NONE"} if name in PUBLIC else None
            assert event["Properties"].get("Auth") == own
    public = {f"{method} {path}" for method, path in api_routes() if path == "/console"}
    assert public == {"GET /console", "ANY /console"}


def test_only_api_gateway_may_invoke_the_authorizer() -> None:
    """SAM creates a permission for the authorizer of this API, and the template adds none."""
    types = {resource["Type"] for resource in TEMPLATE["Resources"].values()}
    assert "AWS::Lambda::Permission" not in types
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
def test_api_gateway_and_authorizer_accept_the_same_tokens(header: str, accepted: bool) -> None:
    """API Gateway rejects other headers with 401 without an invocation, and must not reject a valid token."""
    expression = TEMPLATE["Resources"]["Api"]["Properties"]["Auth"]["Authorizers"]["CallerAuthorizer"]["Identity"]
    assert bool(re.fullmatch(expression["ValidationExpression"], header)) == accepted
    try:
        Token.from_header(header)
    except UnauthenticatedError:
        assert not accepted
    else:
        assert accepted


# The routes with a limit of their own. All others share OperationsRateLimit, the default of the stage.
LIMITS = {
    "WriteRateLimit": {
        "POST /v1/entitlements/grants",
        "POST /v1/entitlements/revokes",
        "POST /v1/entitlements/extensions",
    },
    "BatchRateLimit": {"POST /v1/entitlements/batches", "POST /v1/entitlements/checks"},
    "ReadRateLimit": {
        "GET /v1/users/{user_id}/entitlements",
        "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}",
        "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}/history",
        "GET /v1/users/{user_id}/summary",
    },
    "FeedRateLimit": {"GET /v1/changes", "GET /v1/snapshot"},
    "OperationsRateLimit": {"* *"},
}


def _joined(node: Any) -> str:
    """Return the text of a literal, or of the Join and Split that encode a path."""
    if isinstance(node, str):
        return node
    ((function, (separator, parts)),) = node.items()
    if function == "Fn::Split":
        raise AssertionError("a list cannot be joined to a text")
    texts = parts["Fn::Split"][1].split(parts["Fn::Split"][0]) if isinstance(parts, dict) else map(_joined, parts)
    return str(separator).join(texts)


def test_every_group_of_routes_has_a_rate_limit() -> None:
    """E5: each limit is a parameter, with equal rate and burst. The smallest is for routes without a group."""
    limits: dict[str, set[str]] = {}
    for setting in TEMPLATE["Resources"]["Api"]["Properties"]["MethodSettings"]:
        assert setting["ThrottlingRateLimit"] == setting["ThrottlingBurstLimit"]
        assert setting["MetricsEnabled"] is True
        encoded = _joined(setting["ResourcePath"])
        assert re.fullmatch(r"/[^/]+", encoded), "API Gateway encodes all slashes but the first"
        route = f"{setting['HttpMethod']} {encoded[1:].replace('~1', '/')}"
        limits.setdefault(setting["ThrottlingRateLimit"]["Ref"], set()).add(route)
    assert limits == LIMITS
    assert set().union(*LIMITS.values()) - {"* *"} <= ROUTES.keys()
    assert {PARAMETERS[name]["Type"] for name in limits} == {"Number"}
    assert min(limits, key=lambda name: int(PARAMETERS[name]["Default"])) == "OperationsRateLimit"


def test_every_path_is_written_once() -> None:
    """Whoever renames a route changes one line of the template; every other place refers to it."""
    text = (ROOT / "template.yaml").read_text()
    paths = {path for _method, path in api_routes()}
    written = re.findall(r'(?:Path: |Split \[/, )(?:&[\w-]+ )?"?(/(?:v1|console|debug)[^",\s\]]*)', text)
    assert sorted(written) == sorted(paths)


def test_template_stays_small() -> None:
    """An operator reads all parameters, and an engineer reads the whole file."""
    assert len(PARAMETERS) <= 60
    assert len((ROOT / "template.yaml").read_text().splitlines()) <= 1500


def test_failed_authorizer_is_503_and_misconfigured_authorizer_is_500() -> None:
    """E5: with the error codes of the API. A client can retry after the first."""
    responses = TEMPLATE["Resources"]["Api"]["Properties"]["GatewayResponses"]
    failure, misconfigured = responses["AUTHORIZER_FAILURE"], responses["AUTHORIZER_CONFIGURATION_ERROR"]
    assert (failure["StatusCode"], misconfigured["StatusCode"]) == (503, 500)
    assert failure["ResponseParameters"] == {"Headers": {"Retry-After": "'1'"}}
    templates = [response["ResponseTemplates"]["application/json"] for response in (failure, misconfigured)]
    assert [json.loads(body)["code"] for body in templates] == ["UNAVAILABLE", "INTERNAL"]


@pytest.mark.parametrize(
    ("parameters", "accepted"),
    [
        ({}, True),
        ({"SubnetIds": "subnet-1"}, False),
        ({"SubnetIds": "subnet-1,subnet-2"}, False),
        *(
            ({name: "arn:aws:secretsmanager:eu-central-1:1:secret:s"}, False)
            for name in PARAMETERS
            if name.endswith("SecretArn")
        ),
    ],
)
def test_authorizer_is_required_on_aws(parameters: dict[str, str], accepted: bool) -> None:
    """S4: only a stack without secrets of AWS and subnets may run without the authorizer, which is the default."""
    assert _accepts("AuthorizerOnAws", GatewayAuthenticates="false", **parameters) == accepted
    assert _accepts("AuthorizerOnAws", **parameters)
    assert (PARAMETERS["GatewayAuthenticates"]["Default"], PARAMETERS["GatewayDecodesPath"]["Default"]) == (
        "true",
        "false",
    )


def test_example_event_of_manage_clients_changes_nothing() -> None:
    """S2: it lists clients."""
    event = json.loads((ROOT / "infra" / "events" / "manage_clients.json").read_text())
    assert ClientCommand.parse(event).action == "list"


def test_deployment_guide_explains_every_parameter() -> None:
    """docs/deploy.md must mention every parameter of the template."""
    guide = (ROOT / "docs" / "deploy.md").read_text()
    assert {name for name in PARAMETERS if f"`{name}`" not in guide} == set()
