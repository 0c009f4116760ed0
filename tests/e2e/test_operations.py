"""T1, T2, T8: the operations API of the deployed stack. Only the schedules invoke the workers."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from infra.local.system.processes import wait_for
from tests.e2e.callers import create_caller
from tests.e2e.http import Http
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.client import Response

OPERATOR = {"actor": "e2e", "reason": "a test"}
# A worker is started every minute and works for 63 seconds; the first one may have a cold start.
TIMEOUT_SECONDS = 75.0


def get(http: Http, path: str, query: str = "", template: str | None = None) -> Any:
    """GET a route, check the response against openapi.yaml, and return its body."""
    response = http.send("GET", path + query)
    assert_matches_contract("GET", template or path, response.status, response.headers, response.body)
    assert response.status == 200, response.body
    return response.json


def post(http: Http, path: str, body: Any, template: str | None = None) -> Response:
    """POST a body with a new idempotency key."""
    headers = [("Content-Type", "application/json"), ("Idempotency-Key", str(uuid.uuid4()))]
    response = http.send("POST", path, headers, json.dumps(body))
    assert_matches_contract("POST", template or path, response.status, response.headers, response.body)
    return response


def test_operator_follows_a_change_and_gives_a_command(http: Http) -> None:
    """T1, T2, T8: a trace until the notification is sent, a command that a worker executes, and a sample of it."""
    user = f"u_{uuid.uuid4()}"
    assert http.grant(user, user_id=user).status == 200

    def sent() -> Any:
        trace = get(http, "/v1/ops/trace", f"?user_id={user}&stock_keeping_unit=item1")
        return trace if trace["changes"][0]["state"] == "SENT" else None

    trace = wait_for(sent, TIMEOUT_SECONDS, every=0.2)
    stages = [entry["stage"] for entry in trace["timeline"]]
    stages.remove("published")  # the bridge may record an event before the relay has recorded that it is published
    assert stages == ["request", "change", "outbox", "inbox", "read_model", "notification", "sent"]
    command_id = post(http, "/v1/ops/read-model/verify", OPERATOR).json["command_id"]
    path = f"/v1/ops/commands/{command_id}"

    def done() -> Any:
        command = get(http, path, template="/v1/ops/commands/{command_id}")
        return command if command["status"] == "DONE" else None

    assert "found" in wait_for(done, TIMEOUT_SECONDS, every=0.2)["result"]
    assert get(http, "/v1/ops/samples")["samples"]
    status = get(http, "/v1/ops/status")
    assert status["schema"]["matches"] is True


def test_client_created_over_the_api_can_call_it(stack: EmbeddedStack) -> None:
    """T1: by a client with the scope, and only with scopes that it has; the function has the role of the clients."""
    http = Http(stack.api_url, create_caller(stack, "clients:read", "clients:write", "ops:read").token)
    body = {"name": f"e2e {uuid.uuid4()}", "scopes": ["ops:read"], **OPERATOR}
    assert post(http, "/v1/ops/clients", body | {"scopes": ["ops:write"]}).code == "FORBIDDEN"
    created = post(http, "/v1/ops/clients", body).json
    reader = Http(stack.api_url, created["token"])
    # Within a second after an unknown id, the authorizer refuses clients that are newer than that (G6).
    assert wait_for(lambda: reader.send("GET", "/v1/ops/status").status == 200, TIMEOUT_SECONDS, every=0.2)
    assert reader.send("GET", "/v1/ops/clients").status == 403
    revoke = f"/v1/ops/clients/{created['client_id']}/revoke"
    assert post(http, revoke, OPERATOR, "/v1/ops/clients/{client_id}/revoke").status == 200
    names = {client["name"]: client["revoked_at"] for client in get(http, "/v1/ops/clients")["clients"]}
    assert names[body["name"]] is not None
