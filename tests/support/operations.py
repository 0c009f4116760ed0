"""Calls the operations API in this process, and checks every response against the API document."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from functions.operations.handler import handler
from grantwire.clients.scopes import Scope
from grantwire.wiring.routes.operations import OperationsRuntime
from tests.support.client import Response, event
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from typing import Self

DEAD_LETTER = "/v1/ops/dead-letters/{kind}/{dead_letter_id}"
REDRIVE = "/v1/ops/dead-letters/redrive"
DISCARD = "/v1/ops/dead-letters/discard"
COMMAND = "/v1/ops/commands/{command_id}"
OPERATOR = {"actor": "ann", "reason": "repaired"}


class OpsClient:
    """Caller of the function `operations` in one execution environment."""

    def __init__(self, database_url: str, **environ: str) -> None:
        self.runtime = OperationsRuntime.build({**PLAINTEXT, "DATABASE_URL": database_url, **environ})

    def __enter__(self) -> Self:
        """Do nothing: the runtime connects on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.runtime.database.close()

    def send(self, method: str, path: str, *, scopes: str = " ".join(Scope), **parts: Any) -> Response:
        """Send a request from a caller with these scopes; `parts` replace keys of the event."""
        context = {
            "requestId": str(uuid.uuid4()),
            "authorizer": {"principalId": "operator", "scopes": scopes},
            "identity": {"sourceIp": "203.0.113.7"},
        }
        sent = handler.with_runtime(self.runtime)(event(method, path, requestContext=context, **parts), None)
        response = Response(sent["statusCode"], sent["headers"], sent["body"])
        assert_matches_contract(method, path, response.status, response.headers, response.body)
        return response

    def get(self, path: str, parameters: dict[str, str] | None = None, /, **query: str) -> Response:
        """GET a path with path parameters and query parameters."""
        return self.send("GET", path, pathParameters=parameters, queryStringParameters=query or None)

    def post(self, path: str, key: str, body: Any) -> Response:
        """POST a body with an idempotency key."""
        return self.send("POST", path, headers={"Idempotency-Key": key}, body=json.dumps(body))

    def command(self, response: Response) -> Any:
        """Return the command that the response accepted."""
        assert response.status == 202, response.body
        return self.get(COMMAND, {"command_id": response.json["command_id"]}).json
