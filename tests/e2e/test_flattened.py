"""The build for an AWS that does not apply layers, deployed to a separate emulator and called over HTTP."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME, Deployment
from infra.local.servers.emulator import EmulatorServer
from tests.e2e.http import Http
from tests.e2e.test_artifacts import LOGICAL_NAMES, import_isolated
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorServer]:
    """A separate emulator, because both deployments give their API the same id."""
    server = EmulatorServer(STATE / "flattened" / "aws")
    try:
        server.start()
        yield server
    finally:
        server.destroy()
        shutil.rmtree(STATE / "flattened", ignore_errors=True)


@pytest.fixture(scope="module")
def flattened(stack: EmbeddedStack, emulator: EmulatorServer) -> Deployment:
    """The session's build without layers, deployed with the session's PostgreSQL and NATS."""
    folder = STATE / "flattened" / "deployment"
    deployment = Deployment(folder, emulator, stack.deployment.parameters, layers=False)
    shutil.copytree(stack.deployment.build, deployment.build)
    deployment.deploy()
    return deployment


def test_no_deployed_function_has_a_layer(flattened: Deployment, emulator: EmulatorServer) -> None:
    """The functions therefore also work on an AWS that ignores layers."""
    assert flattened.outputs()["ApiId"]
    deployed = aws.client("lambda", emulator.url, emulator.access_key).list_functions()["Functions"]
    assert {function["FunctionName"] for function in deployed} == {
        f"{STACK_NAME}-{name.replace('_', '-')}" for name in LOGICAL_NAMES
    }
    assert [function["FunctionName"] for function in deployed if function.get("Layers")] == []


def test_grant_is_applied_and_replayed(stack: EmbeddedStack, flattened: Deployment, emulator: EmulatorServer) -> None:
    """S4: the API responds from the database, and a repeated request gets the stored response."""
    outputs = flattened.outputs()
    http, user = Http(emulator.api_url(outputs["ApiId"], outputs["ApiStage"]), stack.token), f"u_{uuid.uuid4()}"
    granted, replayed = (http.grant(f"{user}-1", user_id=user) for _ in range(2))
    assert (granted.status, granted.json["version"]) == (200, 1)
    assert (replayed.body, replayed.replayed) == (granted.body, True)
    assert http.list_entitlements(user).json["entitlements"][0]["status"] == "ACTIVE"


@pytest.mark.parametrize("name", LOGICAL_NAMES)
def test_flattened_function_imports_without_other_packages(flattened: Deployment, name: str) -> None:
    """Only the function's own folder is on the path."""
    folder = str(flattened.artifacts / LOGICAL_NAMES[name])
    assert import_isolated(name, [folder]) == [f"{folder}/handler.py", [f"{folder}/grantwire"]]
