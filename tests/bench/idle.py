"""What an idle stack is billed for: the REPORT lines of every worker with the input of its schedule (X1, X3)."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from infra.local.deployment.conditions import ConditionEvaluator
from infra.local.deployment.template import functions, load_template
from tests.bench.cold_start import BuiltFunctions
from tests.bench.results import Finding, Section

if TYPE_CHECKING:
    from infra.local.progress import Progress
    from tests.bench.effort import Effort
    from tests.bench.servers import Servers

TITLE = "What idle costs"
# Before workers ended when they are idle, six of them ran for 63 s every minute.
_BEFORE_SECONDS = 6 * 63.0
_TARGETS = {"always-on": 55.0, "economical": 5.0}
_METHOD = """\
Every worker is built by `sam build` and started under the runtime interface emulator, on a database without work, with
the input that its schedule has in `template.yaml`. It is invoked twice, as in an execution environment that is used
again, and the `Billed Duration` of the second REPORT line counts: seconds for each minute. A worker that runs all the
time is invoked once. The share is that of the time before workers ended when they were idle, 378 s for each minute. On
Lambda a function of 512 MB has less CPU, so the short runs are longer there."""


def measure(servers: Servers, effort: Effort, progress: Progress) -> Section:
    """Invoke every worker in both modes; workers that run all the time run at the same time."""
    if sys.platform != "linux":
        return Section(TITLE, remarks=["Not measured: the runtime interface emulator is a program for Linux."])
    with progress.step("Building the functions as for Lambda"):
        built = BuiltFunctions(servers, servers.nats.state.with_name("idle"), 1)
    seconds: dict[str, dict[str, float]] = {}
    for mode in _TARGETS:
        with progress.step(f"{TITLE}: all workers, {mode}"):
            inputs = _inputs(mode, shortened=effort.end_to_end_seconds == 0)
            with ThreadPoolExecutor(len(inputs)) as threads:
                billed = {name: threads.submit(_billed_seconds, built, name, event) for name, event in inputs.items()}
            seconds[mode] = {name: future.result() for name, future in billed.items()}
    return _section(seconds)


def _billed_seconds(built: BuiltFunctions, name: str, event: dict[str, Any]) -> float:
    return built.start(name, 0, event, requests=2 if event["until"] == "idle" else 1).billed_ms / 1000


def _inputs(mode: str, *, shortened: bool) -> dict[str, dict[str, Any]]:
    """Return the input of each worker that starts every minute; in a smoke run none of them works for a minute."""
    template = load_template()
    text = ConditionEvaluator(template, {"WorkerMode": mode}).text
    inputs: dict[str, dict[str, Any]] = {}
    for properties in functions(template).values():
        for event in properties.get("Events", {}).values():
            if event["Type"] == "Schedule" and text(event["Properties"]["Schedule"]) != "rate(1 hour)":
                name = properties["CodeUri"].rstrip("/").removeprefix("functions/")
                inputs[name] = json.loads(text(event["Properties"]["Input"]) or "")
    if shortened:
        inputs = {name: {**event, "budget": "1s"} for name, event in inputs.items()}
    return inputs


def _section(seconds: dict[str, dict[str, float]]) -> Section:
    always_on, economical = (seconds[mode] for mode in _TARGETS)
    table = ["| worker | always-on | economical |", "| --- | ---: | ---: |"]
    table += [f"| {name} | {always_on[name]:.2f} s | {economical[name]:.2f} s |" for name in sorted(always_on)]
    findings = []
    for mode, target in _TARGETS.items():
        total = sum(seconds[mode].values())
        share = 100 * total / _BEFORE_SECONDS
        findings.append(Finding.at_most(f"idle, {mode}", f"{share:.1f} % ({total:.1f} s)", share, target, "%"))
    return Section(TITLE, findings=findings, remarks=[_METHOD, "\n".join(table)])
