"""Clients of the deployed API, created with the function manage_clients as an operator does."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from grantwire.clients.scopes import CLIENT_ROUTES, PUBLIC_ROUTES, Scope
from grantwire.clients.tokens import Token
from infra.local.deployment.template import api_routes
from infra.local.stack.development_client import TOKEN_ENVIRONMENT
from tests.e2e.aws import invoke
from tests.e2e.http import Http
from tests.support.checks import CHECKS
from tests.support.client import BATCHES, CHANGE, EXTENSIONS, item
from tests.support.contract import assert_matches_contract

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack
    from tests.support.client import Response

# The invalid headers that are refused without a look at the clients.
MALFORMED = {
    "no token",
    "an empty token",
    "another scheme",
    "a malformed token",
    "a token without its scheme",
    "two tokens",
}
ROW_COUNTS = """
SELECT (SELECT count(*) FROM entitlements), (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM entitlement_audit),
       (SELECT count(*) FROM api_clients)
"""
EXPIRE = """
UPDATE api_clients SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'
 WHERE client_id = %s
"""


def protected_routes() -> list[tuple[str, str]]:
    """Return every route of the template that needs a scope, so that a new route is always included."""
    others = {route.partition(" ")[2] for route in PUBLIC_ROUTES | CLIENT_ROUTES}
    return [(method, path) for method, path in api_routes() if path not in others]


@dataclass(frozen=True)
class Caller:
    """A client that was created for a test."""

    client_id: str
    token: str


def create_caller(stack: EmbeddedStack, *scopes: str) -> Caller:
    """Create a client with these scopes, or with all. Its token is not in the cache of API Gateway yet."""
    result = manage_clients(stack, action="create", name=f"e2e {uuid.uuid4()}", scopes=list(scopes or Scope))
    # Within a second after an unknown id, the authorizer refuses clients that are newer than that (G6).
    time.sleep(1.05)
    return Caller(result["client_id"], result["token"])


def manage_clients(stack: EmbeddedStack, **command: Any) -> Any:
    """Invoke the deployed function manage_clients and return its result."""
    operator = {} if command["action"] == "list" else {"actor": "e2e", "reason": "a test"}
    result = invoke(stack, "manage-clients", command | operator)
    assert "errorMessage" not in result
    return result


def count_rows(stack: EmbeddedStack) -> Any:
    """Return the number of rows in each table that a request may write to."""
    with psycopg.connect(stack.database_url) as connection:
        return connection.execute(ROW_COUNTS).fetchone()


def send_request(api_url: str, method: str, path: str, authorization: str | None) -> Response:
    """Send a request that an authorized caller may send: it succeeds, or is a state conflict.

    On a route of operators it may be incomplete, or name an object that does not exist.
    """
    user = f"u_{uuid.uuid4()}"
    headers = [("Content-Type", "application/json"), ("Idempotency-Key", user)]
    if authorization is not None:
        headers.append(("Authorization", authorization))
    body = json.dumps(_body(path, user)) if method == "POST" else ""
    sent = "PUT" if method == "ANY" else method
    response = Http(api_url).send(sent, re.sub(r"\{\w+\}", user, path), headers, body)
    assert_matches_contract(sent, path, response.status, response.headers, response.body)
    return response


def _body(path: str, user: str) -> dict[str, Any]:
    if path == BATCHES:
        return {"items": [item(user, user_id=user)]}
    if path == CHECKS:
        return {"checks": [{"user_id": user, "stock_keeping_unit": "item1"}]}
    return CHANGE | {"user_id": user} | ({"expires_at": None} if path == EXTENSIONS else {})


def create_invalid_headers(stack: EmbeddedStack) -> dict[str, str | None]:
    """Return Authorization headers that are valid for no route, by what is wrong with them."""
    known, expired, revoked = (create_caller(stack) for _ in range(3))
    with psycopg.connect(stack.database_url) as connection:
        connection.execute(EXPIRE, (expired.client_id,))
    manage_clients(stack, action="revoke", client_id=revoked.client_id)
    secret = known.token.rpartition("_")[2]
    return {
        "no token": None,
        "an empty token": "Bearer ",
        "another scheme": "Basic Z3c6Z3c=",
        "a malformed token": "Bearer gw_dev_short",
        "a token without its scheme": known.token,
        "two tokens": f"Bearer {known.token} {known.token}",
        "a wrong secret": f"Bearer {Token.mint(TOKEN_ENVIRONMENT, known.client_id).text}",
        "an unknown client": f"Bearer gw_dev_{'0' * 12}_{secret}",
        "another environment": f"Bearer gw_live_{known.client_id}_{secret}",
        "an expired client": f"Bearer {expired.token}",
        "a revoked client": f"Bearer {revoked.token}",
    }
