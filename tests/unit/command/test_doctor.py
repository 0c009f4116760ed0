from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from grantwire_cli.checks.deployment import OUTPUTS, check_deployment
from grantwire_cli.checks.findings import Level
from infra.local.commands.findings import findings as print_findings
from infra.local.doctor import machine
from infra.local.progress import Progress
from infra.local.stack import selection
from infra.local.stack.embedded import EmbeddedStack
from infra.local.stack.localstack import LocalStackStack
from infra.local.system import unprivileged
from tests.support.fake_api import FakeApi, Fault, error
from tests.support.ops_examples import status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from infra.local.stack.deployed import DeployedStack
    from tests.unit.command.conftest import Result

    Run = Callable[..., Result]


class Aws:
    """The parts of AWS that the checks use; a test changes one of them."""

    def __init__(self) -> None:
        self.status = "UPDATE_COMPLETE"
        self.outputs = list(OUTPUTS)
        self.layers = {"grant": "1", "revoke": "1"}
        self.state = "Active"
        self.runtime = "python3.13"
        self.rules = {"relay": "ENABLED", "bridge": "ENABLED"}

    def __call__(self, _service: str) -> Any:
        """Return the client of any service."""
        return self

    def describe_stacks(self, **_options: str) -> Any:
        """Return the stack."""
        outputs = [{"OutputKey": name} for name in self.outputs]
        parameters = [{"ParameterKey": "Runtime", "ParameterValue": "python3.13"}]
        return {"Stacks": [{"StackStatus": self.status, "Outputs": outputs, "Parameters": parameters}]}

    def get_paginator(self, _operation: str) -> Any:
        """Return the paginator of the resources."""
        return self

    def paginate(self, **_options: str) -> Any:
        """Return one page of resources."""
        resources = [("AWS::Lambda::Function", name) for name in self.layers]
        resources += [("AWS::Events::Rule", name) for name in self.rules]
        return [
            {"StackResourceSummaries": [{"ResourceType": kind, "PhysicalResourceId": name} for kind, name in resources]}
        ]

    def get_function_configuration(self, FunctionName: str) -> Any:  # noqa: N803  # the name of boto3
        """Return a function."""
        arn = f"arn:aws:lambda:eu-central-1:1:layer:CoreLayer:{self.layers[FunctionName]}"
        return {"State": self.state, "Runtime": self.runtime, "Layers": [{"Arn": arn}]}

    def describe_rule(self, Name: str) -> Any:  # noqa: N803
        """Return a schedule."""
        return {"State": self.rules[Name]}


def test_healthy_stack_has_no_problems() -> None:
    """T4: outputs, functions, layers and schedules."""
    assert {finding.level for finding in check_deployment(Aws(), "s", deploy="d")} == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "message", "repair"),
    [
        ({"status": "UPDATE_ROLLBACK_COMPLETE"}, "the stack s is UPDATE_ROLLBACK_COMPLETE", "d"),
        ({"outputs": ["ApiUrl"]}, "the stack has no output ApiId", "d"),
        ({"state": "Failed"}, "grant is Failed", "d"),
        ({"runtime": "python3.10"}, "grant runs on python3.10", "d"),
        ({"layers": {"grant": "1", "revoke": "2"}}, "functions use versions 1, 2 of the layer CoreLayer", "d"),
        ({"layers": {}}, "the stack has no functions", "d"),
        ({"rules": {"relay": "DISABLED"}}, "the schedule relay is disabled", "aws events enable-rule --name relay"),
        ({"rules": {}}, "the stack has no schedules", "d"),
    ],
)
def test_each_fault_of_a_stack_is_a_problem(changes: dict[str, Any], message: str, repair: str) -> None:
    """T4: with the command that repairs it."""
    aws = Aws()
    vars(aws).update(changes)
    found = [finding for finding in check_deployment(aws, "s", deploy="d") if finding.level is Level.PROBLEM]
    assert any(finding.message.startswith(message) and finding.repair == repair for finding in found)


def test_doctor_of_a_deployed_installation(grantwire: Run, api: FakeApi) -> None:
    """T4: API, token and status over HTTP; exit code 1 if there are problems."""
    api.respond("GET", "/v1/ops/status", status())
    healthy = grantwire("doctor", "--json")
    assert (healthy.code, healthy.json["problems"]) == (0, 0)
    problem = {
        "code": "DEAD_LETTERS",
        "message": "2 open dead letters",
        "still_works": "everything else",
        "to_do": "grantwire dead-letters groups",
    }
    api.respond("GET", "/v1/ops/status", status(state="ATTENTION", problems=[problem]))
    attention = grantwire("doctor")
    assert attention.code == 1
    assert "✗ status        2 open dead letters\n" in attention.out
    assert "→ grantwire dead-letters groups\n" in attention.out
    api.faults = [Fault(error(403, "FORBIDDEN"))]
    assert "✗ token " in grantwire("doctor").out


def test_doctor_of_a_checkout_without_tools(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: what the checkout itself cannot check is a finding."""
    folder = home / "checkout"
    (folder / "infra" / "local").mkdir(parents=True)
    (folder / "infra" / "local" / "__main__.py").write_text("import sys; sys.exit('The tools are not installed.')")
    (folder / "template.yaml").touch()
    monkeypatch.chdir(folder)
    result = run("doctor", "--json")
    assert result.code == 1
    (finding,) = result.json["findings"]
    assert "The tools are not installed." in finding["message"]


def test_findings_of_a_checkout_are_shown(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: those of `python -m infra.local findings`, and then those of the API."""
    folder = home / "checkout"
    (folder / "infra" / "local").mkdir(parents=True)
    findings = {"findings": [{"check": "disk", "level": "warning", "message": "little", "repair": "free some"}]}
    (folder / "infra" / "local" / "__main__.py").write_text(f"print({json.dumps(json.dumps(findings))})")
    (folder / "template.yaml").touch()
    monkeypatch.chdir(folder)
    result = run("doctor", "--json")
    assert (result.code, result.json["findings"]) == (0, findings["findings"])


def test_readable_secrets_and_little_disk_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: the state folder, each file with secrets, and the free space."""
    state = home / ".grantwire"
    state.mkdir(mode=0o700)
    monkeypatch.setattr(machine, "STATE", state)
    monkeypatch.setattr(unprivileged, "enterable_mode", lambda: 0o700)

    def problems() -> set[str]:
        return {finding.repair for finding in machine.check_machine() if finding.check in {"permissions", "disk"}}

    assert problems() <= {"", "free some space"}
    state.chmod(0o755)
    (state / "token").write_text("t")
    (state / "token").chmod(0o644)
    assert problems() >= {f"chmod 700 {state}", f"chmod 600 {state / 'token'}"}
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1000}))
    assert any("make clean" in repair for repair in problems())


@pytest.mark.parametrize(("kind", "repair"), [("embedded", "make up"), ("localstack", "make up STACK=localstack")])
def test_server_that_does_not_run_is_a_problem(
    kind: str, repair: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: of the embedded stack, and of the stack in containers; the exit code is 1."""

    def stack_of_the_checkout(progress: Progress) -> DeployedStack:
        return (EmbeddedStack if kind == "embedded" else LocalStackStack)(home, progress=progress)

    monkeypatch.setattr(selection, "current_stack", stack_of_the_checkout)
    monkeypatch.setattr("infra.local.commands.findings.check_machine", list)
    monkeypatch.setenv("PATH", "")
    output = io.StringIO()
    assert print_findings([], Progress(output)) == 1
    found = {(item["message"], item["level"], item["repair"]) for item in json.loads(output.getvalue())["findings"]}
    names = ("postgres", "nats", "emulator" if kind == "embedded" else "localstack")
    assert found == {(f"{name} does not run", "problem", repair) for name in names}
