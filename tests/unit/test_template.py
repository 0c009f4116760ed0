"""The template against the code it wires: events, variables, timeouts, schedules."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from grantwire.database import DatabaseSettings
from grantwire.entrypoints.request import Request
from grantwire.runtime.api import ApiSettings
from grantwire.runtime.bridge import BridgeSettings
from grantwire.runtime.delivery import DeliverySettings
from grantwire.runtime.inbox import InboxSettings
from grantwire.runtime.recorder import RecorderSettings
from grantwire.runtime.redrive import RedriveSettings
from grantwire.runtime.relay import RelaySettings
from grantwire.runtime.sweep import SweepSettings
from grantwire.settings import load, parse_duration, variables
from tests.paths import FUNCTIONS, ROOT
from tests.sam_template import load_template

GATEWAY_LIMIT = 29
TEMPLATE = load_template()
RESOURCES: dict[str, Any] = {
    resource["Properties"]["CodeUri"].rstrip("/").removeprefix("functions/"): resource["Properties"]
    for resource in TEMPLATE["Resources"].values()
    if resource["Type"] == "AWS::Serverless::Function"
}
SETTINGS: dict[str, type] = {
    "grant": ApiSettings,
    "revoke": ApiSettings,
    "query": DatabaseSettings,
    "show_inbox": InboxSettings,
    "migrate_database": DatabaseSettings,
    "relay_outbox": RelaySettings,
    "bridge_events": BridgeSettings,
    "deliver_notifications": DeliverySettings,
    "record_advisories": RecorderSettings,
    "sweep_retention": SweepSettings,
    "redrive_dead_letters": RedriveSettings,
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


def test_every_folder_is_a_function_and_every_function_a_folder() -> None:
    """One folder, one Lambda, one handler."""
    folders = {folder.name for folder in FUNCTIONS.iterdir() if (folder / "handler.py").exists()}
    assert folders == RESOURCES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_says_what_it_is_and_has_an_event_to_try_it_with(name: str) -> None:
    """S2: `sam local invoke` takes infra/events/NAME.json."""
    assert RESOURCES[name]["Description"]
    event = json.loads((ROOT / "infra" / "events" / f"{name}.json").read_text())
    if _is_route(name):
        route = next(one["Properties"] for one in _events(name) if one["Properties"]["Method"] != "any")
        request = Request.of(event)
        assert request.route == f"{route['Method'].upper()} {route['Path']}"
    elif name in SCHEDULED and name != "sweep_retention":
        assert event == {"budget": "3s", "until": "idle"}


@pytest.mark.parametrize("name", RESOURCES)
def test_a_function_gets_what_its_settings_read_and_nothing_else(name: str) -> None:
    """A variable that nobody reads is a misunderstanding; one that is missing stops the function."""
    given = set(RESOURCES[name]["Environment"]["Variables"])
    known = {variable.name: variable for variable in variables(SETTINGS[name])}
    assert given <= known.keys()
    required = {name for name, variable in known.items() if variable.default is None and not variable.optional}
    assert required <= given


@pytest.mark.parametrize("name", [name for name in RESOURCES if _is_route(name)])
def test_a_route_s_timeouts_nest(name: str) -> None:
    """Connect, lock and statement end before the function does, and the function before API Gateway."""
    database = load(DatabaseSettings, {"DATABASE_URL": "postgresql://u@h/d"})
    lock = parse_duration(TEMPLATE["Parameters"]["IdempotencyLockWait"]["Default"])
    waits = database.connect_timeout + lock + database.statement_timeout
    timeout = RESOURCES[name]["Timeout"]
    assert waits < timedelta(seconds=timeout)
    assert timeout < GATEWAY_LIMIT


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_worker_fires_from_a_schedule_that_is_a_parameter(name: str) -> None:
    """O7: an EventBridge rule, no asynchronous retries, no old events, and time to clean up after the budget."""
    (event,) = _events(name)
    assert event["Type"] == "Schedule"
    assert SCHEDULED[name] in TEMPLATE["Parameters"]
    assert RESOURCES[name]["EventInvokeConfig"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}
    assert RESOURCES[name]["Timeout"] >= 75


def test_only_kinds_that_every_emulator_serves_are_used() -> None:
    """ADR 5: neither HTTP APIs nor EventBridge Scheduler."""
    kinds = {event["Type"] for name in RESOURCES for event in _events(name)}
    assert kinds == {"Api", "Schedule"}


def test_each_alarm_watches_a_metric_with_the_dimensions_that_a_worker_gives_it() -> None:
    """An alarm on a metric that nobody emits never rings."""
    alarms = [one["Properties"] for one in TEMPLATE["Resources"].values() if one["Type"] == "AWS::CloudWatch::Alarm"]
    assert {alarm["MetricName"] for alarm in alarms} >= {
        "EventsFailed",
        "NotificationsFailed",
        "DeadLettersRecorded",
        "OldestEventAge",
    }
    sources = "\n".join(path.read_text() for path in (ROOT / "layers").rglob("*.py"))
    for alarm in alarms:
        dimensions = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
        assert dimensions["service"] == "grantwire"
        assert dimensions["worker"] in SCHEDULED
        assert f'"{alarm["MetricName"]}"' in sources
