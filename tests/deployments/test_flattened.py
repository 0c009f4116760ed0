"""The build for an AWS that neither applies layers nor runs authorizers, as LocalStack's community image.

It is deployed to a separate emulator, whose authorizer is switched off, and called over HTTP.
"""

from __future__ import annotations

import json
import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from grantwire.clients.scopes import Scope
from grantwire.clients.tokens import Token, generate_client_id
from infra.local.deployment import aws
from infra.local.deployment.sam import STACK_NAME, Deployment, Limits
from infra.local.servers.emulator import EmulatorServer
from infra.local.stack.development_client import TOKEN_ENVIRONMENT
from infra.local.system.processes import wait_for
from tests.e2e.callers import MALFORMED, count_rows, create_caller, manage_clients, protected_routes, send_request
from tests.e2e.http import Http
from tests.e2e.test_artifacts import LOGICAL_NAMES, import_isolated
from tests.support.client import CHANGE, ENTITLEMENTS, GRANTS
from tests.support.localstack_template import translate
from tests.support.servers import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    """The session's build without layers and authorizer, deployed with the session's PostgreSQL and NATS.

    Unlike the session's deployment, its functions have the layer for credentials files of NATS.
    """
    folder = STATE / "flattened" / "deployment"
    parameters = stack.deployment.parameters | {"NatsCredentialsFile": "true"}
    parameters |= {"GatewayAuthenticates": "false", "AuthorizerCacheSeconds": "1"}
    limits = Limits(ignores_layers=True, has_old_sam=True, incomplete_gateway=emulator)
    deployment = Deployment(folder, emulator, parameters, limits=limits)
    shutil.copytree(stack.deployment.build, deployment.build)
    deployment.deploy()
    switch_authorizer_off(emulator, deployment.outputs()["ApiId"])
    return deployment


def switch_authorizer_off(emulator: EmulatorServer, api: str) -> None:
    """Let every request pass, so that it reaches its function without a caller."""
    for resource in emulator.api_gateway("GET", f"/{api}/resources?limit=500")["item"]:
        for method in resource["resourceMethods"]:
            change = {"op": "replace", "path": "/authorizationType", "value": "NONE"}
            emulator.api_gateway(
                "PATCH", f"/{api}/resources/{resource['id']}/methods/{method}", {"patchOperations": [change]}
            )


@pytest.fixture(scope="module")
def api_url(flattened: Deployment, emulator: EmulatorServer) -> str:
    """The address of the API."""
    outputs = flattened.outputs()
    return emulator.api_url(outputs["ApiId"], outputs["ApiStage"])


def test_template_is_accepted_by_the_translator_of_localstack(flattened: Deployment) -> None:
    """J1: SAM 1.107 is in the last LocalStack that starts without an account. It refuses properties of a newer SAM."""
    translated, errors = translate(flattened.artifacts / "localstack.yaml", flattened.parameters)
    assert translated, errors
    resources = [resource["Type"] for resource in translated["Resources"].values()]
    assert resources.count("AWS::Lambda::Function") == len(LOGICAL_NAMES)
    _, errors = translate(flattened.artifacts / "template.yaml", flattened.parameters)
    assert "SecurityPolicy" in errors


def test_no_deployed_function_has_a_layer(flattened: Deployment, emulator: EmulatorServer) -> None:
    """The functions therefore also work on an AWS that ignores layers."""
    assert flattened.outputs()["ApiId"]
    deployed = aws.client("lambda", emulator.url, emulator.access_key).list_functions()["Functions"]
    assert {function["FunctionName"] for function in deployed} == {
        f"{STACK_NAME}-{name.replace('_', '-')}" for name in LOGICAL_NAMES
    }
    assert [function["FunctionName"] for function in deployed if function.get("Layers")] == []


def test_grant_is_applied_and_replayed(stack: EmbeddedStack, api_url: str) -> None:
    """S4: the API responds from the database, and a repeated request gets the stored response."""
    http, user = Http(api_url, stack.token), f"u_{uuid.uuid4()}"
    granted, replayed = (http.grant(f"{user}-1", user_id=user) for _ in range(2))
    assert (granted.status, granted.json["version"]) == (200, 1)
    assert (replayed.body, replayed.replayed) == (granted.body, True)
    assert http.list_entitlements(user).json["entitlements"][0]["status"] == "ACTIVE"


@pytest.mark.parametrize(("method", "path"), protected_routes())
def test_route_authenticates_its_callers_itself(
    stack: EmbeddedStack, api_url: str, invalid_headers: dict[str, str | None], method: str, path: str
) -> None:
    """S4, E5: as if the authorizer ran, for every route and every kind of invalid token; nothing is written."""
    before = count_rows(stack)
    statuses = {kind: send_request(api_url, method, path, header).status for kind, header in invalid_headers.items()}
    assert statuses == {kind: 401 if kind in MALFORMED else 403 for kind in invalid_headers}
    assert count_rows(stack) == before


def test_caller_is_the_client_of_the_token(stack: EmbeddedStack, api_url: str) -> None:
    """S4, I7: a key belongs to the client, a missing scope is refused, a revoked token ends after the cache time."""
    writer, user = create_caller(stack, Scope.WRITE_ENTITLEMENTS), f"u_{uuid.uuid4()}"
    http = Http(api_url, writer.token)
    assert http.grant("key", user_id=user).status == 200
    assert Http(api_url, stack.token).grant("key", user_id=user).code == "ENTITLEMENT_STATE_CONFLICT"
    path = ENTITLEMENTS.replace("{user_id}", user)
    refused = http.send("GET", path)
    assert (refused.status, refused.json["message"]) == (403, "missing required scope entitlements:read")
    manage_clients(stack, action="revoke", client_id=writer.client_id)
    body = json.dumps(CHANGE | {"user_id": user})

    def status() -> int:
        return http.send("POST", GRANTS, [("Idempotency-Key", "key")], body).status

    assert wait_for(lambda: status() == 403, 30)


def test_routes_are_unavailable_without_the_database(stack: EmbeddedStack, api_url: str) -> None:
    """S4, E5: 503 with Retry-After, as if the authorizer failed."""
    stack.postgres.stop()
    try:
        response = send_request(api_url, "GET", ENTITLEMENTS, f"Bearer {create_token()}")
    finally:
        stack.postgres.start()
    assert (response.status, response.code) == (503, "UNAVAILABLE")


def create_token() -> str:
    """Return a well-formed token that no cache knows."""
    return Token.mint(TOKEN_ENVIRONMENT, generate_client_id()).text


def test_flattened_function_has_its_own_files_and_those_of_the_layers(
    stack: EmbeddedStack, flattened: Deployment, subtests: pytest.Subtests
) -> None:
    """`test_artifacts` imports each built function with the layer; here, only the function's folder is on the path."""
    build = stack.deployment.build
    layers = list_files(build / "CoreLayer" / "python") | list_files(build / "CredentialsLayer" / "python")
    for name, logical_name in LOGICAL_NAMES.items():
        with subtests.test(name):
            assert list_files(flattened.artifacts / logical_name) == list_files(build / logical_name) | layers
    folder = str(flattened.artifacts / LOGICAL_NAMES["grant"])
    assert import_isolated("grant", [folder]) == [f"{folder}/handler.py", [f"{folder}/grantwire"]]


def list_files(folder: Path) -> set[tuple[Path, int]]:
    """Return the path and the size of each file of a folder."""
    return {(path.relative_to(folder), path.stat().st_size) for path in folder.rglob("*") if path.is_file()}
