"""`make fault` breaks the receiver of the local stack, and repairs it."""

from __future__ import annotations

import io
import re
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from grantwire.operations.advice import ADVICE
from infra.local.commands import fault
from infra.local.errors import CommandError
from infra.local.faults import functions
from infra.local.progress import Progress
from infra.local.stack.embedded import EmbeddedStack
from tests.faults import test_faults
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DEPLOYED = {
    "NOTIFICATION_SENDER": "log",
    "NOTIFICATION_DELIVERY_MAX_ATTEMPTS": "",
    "DATABASE_URL": "postgresql://secret",
}


class Delivery:
    """The deployed function, and how often it was started."""

    def __init__(self) -> None:
        self.variables = dict(DEPLOYED)
        self.started = 0

    def get_function_configuration(self, **_selection: Any) -> Any:
        """Return the variables."""
        return {"Environment": {"Variables": self.variables}}

    def update_function_configuration(self, *, Environment: Any, **_selection: Any) -> None:  # noqa: N803 - of boto3
        """Replace the variables."""
        self.variables = Environment["Variables"]

    def invoke_async(self, _name: str) -> None:
        """Count the call."""
        self.started += 1


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Delivery:
    """The delivery of the checkout's stack."""
    function = Delivery()
    server = SimpleNamespace(
        name="emulator", access_key="k", url="http://127.0.0.1:9", invoke_async=function.invoke_async
    )
    stack = EmbeddedStack(tmp_path)
    monkeypatch.setattr(EmbeddedStack, "aws", property(lambda _stack: server))
    monkeypatch.setattr("infra.local.stack.selection.current_stack", lambda _progress: stack)
    monkeypatch.setattr("infra.local.deployment.aws.client", lambda *_arguments: function)
    return function


def test_receiver_is_broken_twice_and_repaired_once(delivery: Delivery, tmp_path: Path) -> None:
    """T3: the repair restores what was deployed, and the copy of it, which has secrets, is private until then."""
    progress = SimpleNamespace(print_line=lambda _text: None)
    for _repeat in range(2):
        assert fault.fault(["receiver"], progress) == 0  # type: ignore[arg-type]
        assert delivery.variables == DEPLOYED | functions.REFUSING
    assert stat.S_IMODE((tmp_path / f"{functions.DELIVERY}.json").stat().st_mode) == 0o600
    assert fault.fault(["receiver", "--repair"], progress) == 0  # type: ignore[arg-type]
    assert (delivery.variables, delivery.started) == (DEPLOYED, 3)
    assert not (tmp_path / f"{functions.DELIVERY}.json").exists()
    with pytest.raises(CommandError, match="was not changed"):
        fault.fault(["receiver", "--repair"], progress)  # type: ignore[arg-type]


def test_deployment_ends_the_faults_of_functions(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: `make up WEBHOOK=…` after a fault: a later repair does not bring back variables of an older deployment."""
    assert fault.fault(["circuit"], Progress(io.StringIO())) == 0
    assert delivery.variables != DEPLOYED
    deployment = SimpleNamespace(is_current=lambda: False, build_functions=lambda: None, deploy=lambda: None)
    stack = EmbeddedStack(tmp_path, progress=Progress(io.StringIO()))
    monkeypatch.setattr(EmbeddedStack, "deployment", deployment)
    stack._deploy()  # noqa: SLF001 - the step of `up` that needs no server
    assert list(tmp_path.glob("*.json")) == []
    with pytest.raises(CommandError, match="was not changed"):
        fault.fault(["circuit", "--repair"], Progress(io.StringIO()))


def test_every_problem_has_a_fault() -> None:
    """W4: `make fault` can make each problem of the status, and docs/local.md says with which fault."""
    made = {code: [name for name, one in fault.FAULTS.items() if code in one.codes] for code in ADVICE}
    assert all(made.values()), made
    made["DATABASE_UNAVAILABLE"] = ["database"]
    table = (
        (ROOT / "docs" / "local.md").read_text().partition("| problem in the status | fault |")[2].partition("\n\n")[0]
    )
    listed = re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", table, re.MULTILINE)
    assert dict(listed) == {code: ", ".join(f"`{name}`" for name in names) for code, names in made.items()}


def test_fault_prints_its_problems_and_its_repair(delivery: Delivery) -> None:
    """W4: and how it ends."""
    assert delivery.started == 0
    output = io.StringIO()
    assert fault.fault(["circuit"], Progress(output)) == 0
    for text in (
        *("names RECEIVER_UNAVAILABLE and NOTIFICATIONS_OVERDUE.", "End it: repair the receiver."),
        *("docs/runbook.md", "make fault ARGS='circuit --repair'"),
    ):
        assert text in output.getvalue()


def test_walk_makes_every_fault() -> None:
    """W4: tests/faults makes each one, on a deployed stack."""
    assert {*test_faults.TOGETHER, *test_faults.OF_MESSAGES, *test_faults.OF_SERVERS} == fault.FAULTS.keys()


def test_fault_that_a_person_repairs_has_no_repair(delivery: Delivery) -> None:
    """T3: the command says so, and changes nothing."""
    with pytest.raises(CommandError, match="has no repair"):
        fault.fault(["poison", "--repair"], SimpleNamespace())  # type: ignore[arg-type]
    assert delivery.started == 0
