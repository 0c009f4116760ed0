"""The build for an AWS that does not apply layers, deployed to an emulator of its own and called over HTTP."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME, Deployment
from infra.local.servers.emulator import EmulatorServer
from tests.e2e.http import Http
from tests.e2e.test_artifacts import LOGICAL_NAMES, run_alone
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra.local.stack.embedded import EmbeddedStack


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorServer]:
    """Another one than the session's: both deployments give their API the same id."""
    server = EmulatorServer(STATE / "flattened" / "aws")
    try:
        server.start()
        yield server
    finally:
        server.destroy()
        shutil.rmtree(STATE / "flattened", ignore_errors=True)


@pytest.fixture(scope="module")
def flattened(stack: EmbeddedStack, emulator: EmulatorServer) -> Deployment:
    """What the session has built, without layers, on the session's PostgreSQL and NATS."""
    folder = STATE / "flattened" / "deployment"
    deployment = Deployment(folder, emulator, stack.deployment.parameters, layers=False)
    shutil.copytree(stack.deployment.build, deployment.build)
    deployment.deploy()
    return deployment


def test_no_function_has_a_layer(flattened: Deployment, emulator: EmulatorServer) -> None:
    """Neither in the template nor deployed: what works here works where layers are ignored."""
    assert flattened.outputs()["ApiId"]
    deployed = aws.client("lambda", emulator.url).list_functions()["Functions"]
    assert {one["FunctionName"] for one in deployed} == {
        f"{STACK_NAME}-{name.replace('_', '-')}" for name in LOGICAL_NAMES
    }
    assert [one["FunctionName"] for one in deployed if one.get("Layers")] == []


def test_a_grant_and_its_replay(stack: EmbeddedStack, flattened: Deployment, emulator: EmulatorServer) -> None:
    """S4: the API answers from the database, and a repeat gets the stored answer."""
    outputs = flattened.outputs()
    http, user = Http(emulator.api_url(outputs["ApiId"], outputs["ApiStage"]), stack.token), f"u_{uuid.uuid4()}"
    granted, replayed = (http.grant(f"{user}-1", user_id=user) for _ in range(2))
    assert (granted.status, granted.json["version"]) == (200, 1)
    assert (replayed.body, replayed.replayed) == (granted.body, True)
    assert http.rights(user).json["entitlements"][0]["status"] == "ACTIVE"


@pytest.mark.parametrize("name", LOGICAL_NAMES)
def test_a_flattened_function_imports_alone(flattened: Deployment, name: str) -> None:
    """With its own folder and nothing else."""
    folder = str(flattened.artifacts / LOGICAL_NAMES[name])
    assert run_alone(name, [folder]) == [f"{folder}/handler.py", [f"{folder}/grantwire"]]
