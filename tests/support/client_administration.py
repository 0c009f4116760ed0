"""Calls operate_clients in this process, as clients that exist."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from functions.operate_clients.handler import handler
from grantwire.clients.scopes import Scope
from grantwire.clients.store import DEFAULT_LIMITS
from grantwire.operator_actions import Operator
from grantwire.wiring.routes.operate_clients import ClientOperationsRuntime
from grantwire.wiring.tasks.manage_clients import ClientsRuntime
from tests.support.client import PATIENT, Response, event
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Self

    from grantwire.clients.store import ClientLimits

CLIENTS = "/v1/ops/clients"
ROTATE = "/v1/ops/clients/{client_id}/rotate"
REVOKE = "/v1/ops/clients/{client_id}/revoke"
LIMITS = "/v1/ops/clients/{client_id}/limits"
OPERATOR = {"actor": "ann", "reason": "the shop goes live"}


class Administration:
    """Caller of operate_clients in one execution environment, and an operator with access to the database.

    `admin` is a client with all scopes that this operator created.
    """

    def __init__(self, clients_url: str, admin: str | None = None) -> None:
        environ = {**PLAINTEXT, **PATIENT, "DATABASE_URL": clients_url, "TOKEN_ENVIRONMENT": "test"}
        self.runtime = ClientOperationsRuntime.build(environ)
        self.database = ClientsRuntime.build(environ)
        self.admin = admin or self.create_root("admin")

    def __enter__(self) -> Self:
        """Do nothing: the runtimes connect on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.runtime.database.close()
        self.database.close()

    def create_root(
        self, name: str, *scopes: Scope, lifetime: timedelta | None = None, limits: ClientLimits = DEFAULT_LIMITS
    ) -> str:
        """Create a client with access to the database, by default with all scopes, and return its id."""
        operator = Operator("ann", "a test", "tests")
        return self.database.clients.create(operator, name, scopes or tuple(Scope), lifetime, limits).token.client_id

    def send(  # the parts of a request
        self,
        path: str,
        body: Any = None,
        *,
        key: str | None = "k",
        client_id: str | None = None,
        caller: str | None = None,
        scopes: str = " ".join(Scope),
    ) -> Response:
        """Send a request as a client, by default `admin`, and check the response against the API document."""
        method = "GET" if body is None else "POST"
        authorizer = {"principalId": caller or self.admin, "scopes": scopes}
        parts: dict[str, Any] = {"requestContext": {"requestId": str(uuid.uuid4()), "authorizer": authorizer}}
        if client_id is not None:
            parts["pathParameters"] = {"client_id": client_id}
        if body is not None:
            parts |= {"headers": {} if key is None else {"Idempotency-Key": key}, "body": json.dumps(body)}
        sent = handler.with_runtime(self.runtime)(event(method, path, **parts), None)
        response = Response(sent["statusCode"], sent["headers"], sent["body"])
        assert_matches_contract(method, path, response.status, response.headers, response.body)
        return response

    def create(self, name: str, *scopes: Scope, caller: str | None = None, **fields: Any) -> Response:
        """Create a client below the caller, by default with all scopes."""
        body = {"name": name, "scopes": list(scopes or Scope), **OPERATOR, **fields}
        return self.send(CLIENTS, body, key=f"create {name}", caller=caller)

    def create_below(self, caller: str, name: str, *scopes: Scope, **fields: Any) -> str:
        """Create a client below another one, and return its id."""
        return str(self.create(name, *scopes, caller=caller, **fields).json["client_id"])

    def change(self, path: str, client_id: str, *, caller: str, **fields: Any) -> Response:
        """Change a client as another one, with a new key."""
        return self.send(path, {**OPERATOR, **fields}, key=str(uuid.uuid4()), client_id=client_id, caller=caller)
