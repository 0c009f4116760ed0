"""Checks of a deployed stack: outputs, functions, layers and schedules, on AWS or on its emulator."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from grantwire_cli.checks.findings import Finding, ok, problem, warning
from grantwire_cli.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    AwsClient = Callable[[str], Any]

OUTPUTS = ("ApiUrl", "ApiId", "ApiStage", "MigrateDatabaseFunctionName", "ConfigureStreamsFunctionName")
CHECK = "deployment"


def check_deployment(aws: AwsClient, stack: str, *, deploy: str) -> Iterator[Finding]:
    """Yield the findings about a stack; `aws` returns the client of a service, `deploy` is the repairing command.

    Errors of AWS are raised as boto3 raises them.
    """
    description = aws("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    status = description["StackStatus"]
    if status.endswith(("_FAILED", "ROLLBACK_COMPLETE")):
        yield problem(CHECK, f"the stack {stack} is {status}", deploy)
    elif status.endswith("_IN_PROGRESS"):
        yield warning(CHECK, f"a deployment of the stack {stack} is running ({status})")
    else:
        yield ok(CHECK, f"the stack {stack} is {status}")
    outputs = {output["OutputKey"] for output in description.get("Outputs", [])}
    if missing := [name for name in OUTPUTS if name not in outputs]:
        yield problem(CHECK, f"the stack has no output {', '.join(missing)}", deploy)
    parameters = {item["ParameterKey"]: item["ParameterValue"] for item in description.get("Parameters", [])}
    resources = _resources(aws("cloudformation"), stack)
    names = [name for kind, name in resources if kind == "AWS::Lambda::Function"]
    yield from _check_functions(aws("lambda"), names, str(parameters.get("Runtime")), deploy)
    yield from _check_schedules(
        aws("events"), [name for kind, name in resources if kind == "AWS::Events::Rule"], deploy
    )


def _resources(client: Any, stack: str) -> list[tuple[str, str]]:
    pages = client.get_paginator("list_stack_resources").paginate(StackName=stack)
    return [
        (item["ResourceType"], item["PhysicalResourceId"]) for page in pages for item in page["StackResourceSummaries"]
    ]


def _check_functions(client: Any, names: list[str], runtime: str, deploy: str) -> Iterator[Finding]:
    """Yield findings about the state of each function, its layer, and its runtime, for which the layer was built."""
    layers: Counter[str] = Counter()
    broken = []
    for name in names:
        function = client.get_function_configuration(FunctionName=name)
        state = (function.get("State", "Active"), function.get("LastUpdateStatus", "Successful"))
        if state != ("Active", "Successful"):
            broken.append(f"{name} is {' and '.join(state)}")
        if function.get("Runtime") != runtime:
            broken.append(f"{name} runs on {function.get('Runtime')}, not {runtime}")
        layers.update(layer["Arn"] for layer in function.get("Layers", []))
    for text in broken:
        yield problem("functions", text, deploy)
    versions = _versions(layers)
    for layer, found in versions.items():
        if len(found) > 1:
            yield problem("layers", f"functions use versions {', '.join(sorted(found))} of the layer {layer}", deploy)
    if not names:
        yield problem("functions", "the stack has no functions", deploy)
    elif not broken:
        used = ", ".join(f"{layer}:{'/'.join(sorted(found))}" for layer, found in versions.items())
        yield ok(
            "functions",
            f"{count_of(len(names), 'function is', 'functions are')} active on {runtime} with layer {used or 'none'}",
        )


def _versions(layers: Counter[str]) -> dict[str, set[str]]:
    """Return the versions of each layer in use."""
    versions: dict[str, set[str]] = {}
    for arn in layers:
        layer, _, version = arn.rpartition(":")
        versions.setdefault(layer.rpartition(":")[2], set()).add(version)
    return versions


def _check_schedules(client: Any, names: list[str], deploy: str) -> Iterator[Finding]:
    disabled = [name for name in names if client.describe_rule(Name=name.rpartition("/")[2])["State"] != "ENABLED"]
    for name in disabled:
        yield problem("schedules", f"the schedule {name} is disabled, so its worker does not run", _enable(name))
    if not names:
        yield problem("schedules", "the stack has no schedules, so no worker runs", deploy)
    elif not disabled:
        yield ok("schedules", f"{count_of(len(names), 'schedule is', 'schedules are')} enabled")


def _enable(name: str) -> str:
    return f"aws events enable-rule --name {name}"
