"""X4: the arithmetic of the costs, and that it is about the template."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_cli import costs
from grantwire_cli.costs import MODES, Load, Prices, monthly, worker_seconds
from grantwire_cli.errors import ExitCode
from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.command.conftest import Result

TEMPLATE = load_template()
# Six workers that ran all the time, before some of them ended when idle.
BEFORE = 6 * costs.RUN_SECONDS * costs.MINUTES


def _alarms() -> list[dict[str, Any]]:
    resources = TEMPLATE["Resources"].values()
    return [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]


def _worker_metrics() -> set[str]:
    """Return the metrics of workers that alarms and dashboard name."""
    named = {alarm["MetricName"] for alarm in _alarms() if alarm.get("Namespace") == "Grantwire"}
    body = TEMPLATE["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    return named | set(re.findall(r'\["(?:Grantwire|\.)", "(\w+)"', body)) - {"Count", "4XXError", "5XXError"}


@pytest.mark.parametrize("mode", MODES)
def test_workers_are_those_of_the_template(mode: str) -> None:
    """Which of them end when idle, after how long, with which memory, and how often they start."""
    text = ConditionEvaluator(TEMPLATE, {"WorkerMode": mode}).text
    lingers: dict[str, float] = {}
    always: set[str] = set()
    for properties in functions(TEMPLATE).values():
        for event in properties.get("Events", {}).values():
            if event["Type"] == "Schedule" and text(event["Properties"]["Schedule"]) != "rate(1 hour)":
                name, given = (
                    properties["CodeUri"].split("/")[1],
                    json.loads(text(event["Properties"]["Input"]) or "{}"),
                )
                if given["until"] == "idle":
                    lingers[name] = float(given["idle"].removesuffix("s"))
                else:
                    always.add(name)
    assert always == (set(costs.FLOW) if mode == "always-on" else set())
    assert lingers == dict.fromkeys(costs.IDLE, 0.0) | ({} if mode == "always-on" else costs.FLOW)
    assert TEMPLATE["Parameters"]["MemorySize"]["Default"] == Load().memory_mb


def test_alarms_metrics_and_secrets_are_those_of_the_template() -> None:
    """An alarm on a query counts once for each function."""
    queries = [alarm for alarm in _alarms() if "Metrics" in alarm]
    assert (len(_alarms()) - len(queries), len(queries)) == (costs.ALARMS, costs.QUERY_ALARMS)
    assert len(functions(TEMPLATE)) == costs.FUNCTIONS
    assert len(_worker_metrics()) == costs.WORKER_METRICS
    guide = (ROOT / "docs" / "deploy.md").read_text()
    assert len(re.findall(r"create-secret --name grantwire/", guide)) == costs.SECRETS


def test_idle_stack_is_billed_for_a_part_of_the_former_time() -> None:
    """X1: at most 55 % in the mode always-on and 5 % in the mode economical."""
    assert worker_seconds(Load(mode="always-on")) <= 0.55 * BEFORE
    assert worker_seconds(Load(mode="economical")) <= 0.05 * BEFORE


def test_costs_grow_with_the_rate_and_the_modes_meet_under_load() -> None:
    """A worker with work to do runs on in both modes."""
    for mode in MODES:
        totals = [monthly(Load(rate, mode=mode), Prices()).total for rate in (0, 1, 100, 1_000)]
        assert totals == sorted(totals)
    busy = [worker_seconds(Load(1_000, mode=mode)) for mode in MODES]
    assert busy[0] == pytest.approx(busy[1])


def test_command_computes_with_other_prices(run: Callable[..., Result]) -> None:
    """The default prices have a date."""
    result = run("cost", "--rate", "0", "--json")
    assert result.code == ExitCode.OK
    found = result.json
    assert found["prices_of"] == costs.PRICES_OF
    assert found["total"] == pytest.approx(monthly(Load(), Prices()).total)
    free = ("--gigabyte-second", "--million-invocations", "--logs-gigabyte", "--metric", "--alarm", "--secret")
    result = run("cost", "--rate", "0", "--json", *(word for name in free for word in (name, "0")))
    assert result.json["total"] == 0


def test_readme_says_what_idle_costs() -> None:
    """One line, with the numbers of the arithmetic."""
    always_on, economical = (round(monthly(Load(mode=mode), Prices()).total) for mode in MODES)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"An idle stack costs about {always_on} dollars a month, {economical} in the mode `economical`" in readme
