"""Calls the API's functions in this process, with the events that API Gateway would send."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from functions.change_batch.handler import handler as change_batch
from functions.extend.handler import handler as extend
from functions.grant.handler import handler as grant
from functions.query.handler import handler as query
from functions.revoke.handler import handler as revoke
from grantwire.api.request import Request
from grantwire.clients.scopes import Scope
from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements import Entitlements
from grantwire.entitlements.batch_store import EntitlementBatches
from grantwire.entitlements.settings import TimeSettings
from grantwire.idempotency import IdempotencySettings
from grantwire.settings import load
from grantwire.wiring.routes.change_batch import BatchRuntime
from grantwire.wiring.routes.entitlements import ApiRuntime
from tests.support.contract import assert_matches_contract
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from grantwire.api.http import HttpHandler

GRANTS = "/v1/entitlements/grants"
REVOKES = "/v1/entitlements/revokes"
EXTENSIONS = "/v1/entitlements/extensions"
BATCHES = "/v1/entitlements/batches"
ENTITLEMENTS = "/v1/users/{user_id}/entitlements"
SUMMARY = "/v1/users/{user_id}/summary"
INBOX = "/debug/notification/inbox/{user_id}"
CONSOLE = "/console"
CALLER = {"principalId": "tests", "scopes": " ".join(Scope)}
CHANGE = {"user_id": "u_123", "stock_keeping_unit": "item1", "reason": "purchase", "purchase_id": "p_456"}

_HANDLERS: dict[str, HttpHandler[ApiRuntime]] = {
    GRANTS: grant,
    REVOKES: revoke,
    EXTENSIONS: extend,
    ENTITLEMENTS: query,
}


@dataclass(frozen=True, slots=True)
class Unlimited:
    """Runtime of a route that needs nothing and whose callers are not limited."""

    limiter: None = None


@dataclass(frozen=True, slots=True)
class Response:
    """Response as a caller receives it."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        """Body, parsed as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """Error code, or None if the response is not an error."""
        code = self.json.get("code")
        return None if code is None else str(code)

    @property
    def replayed(self) -> bool:
        """Whether this is a stored response."""
        return self.headers.get("Idempotent-Replayed") == "true"


def event(method: str, resource: str, **parts: Any) -> dict[str, Any]:
    """Return an API Gateway proxy event from a caller with every scope; `parts` replace its top-level keys."""
    return {
        "httpMethod": method,
        "resource": resource,
        "headers": {},
        "multiValueHeaders": {},
        "pathParameters": None,
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "body": None,
        "isBase64Encoded": False,
        "requestContext": {"requestId": str(uuid.uuid4()), "authorizer": CALLER},
    } | parts


def item(key: str, operation: str = "grant", **fields: Any) -> dict[str, Any]:
    """Return an item of a batch; `fields` replace those of `CHANGE`."""
    return {"operation": operation, "idempotency_key": key} | CHANGE | fields


# On a busy machine, fifty new connections or a statement may take longer than a caller would wait.
PATIENT = {"DATABASE_CONNECT_TIMEOUT": "10s", "DATABASE_STATEMENT_TIMEOUT": "1m"}


class Client:
    """Caller of the functions in one execution environment, with its own runtime and database connection."""

    def __init__(self, database_url: str, **environ: str) -> None:
        environ = {**PLAINTEXT, **PATIENT, "DATABASE_URL": database_url, **environ}
        database = load(DatabaseSettings, environ)
        settings = load(IdempotencySettings, environ), load(TimeSettings, environ)
        self.database = Database(database)
        self.runtime = ApiRuntime(Entitlements(self.database, *settings))
        self.batch_runtime = BatchRuntime(EntitlementBatches(self.database, *settings, database.statement_timeout))

    def __enter__(self) -> Self:
        """Do nothing: the runtime connects on first use."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.database.close()

    def send(self, event: Mapping[str, Any]) -> Response:
        """Call the function of the event's resource, and check its response against the API document."""
        request = Request.from_api_gateway(event)
        if request.resource == BATCHES:
            sent = change_batch.with_runtime(self.batch_runtime).respond(request).to_api_gateway()
        else:
            sent = _HANDLERS[request.resource].with_runtime(self.runtime).respond(request).to_api_gateway()
        response = Response(sent["statusCode"], sent["headers"], sent["body"])
        if request.method == ("GET" if request.resource == ENTITLEMENTS else "POST"):
            assert_matches_contract(request.method, request.resource, response.status, response.headers, response.body)
        return response

    def grant(self, key: str, **fields: Any) -> Response:
        """POST a grant; `fields` replace those of `CHANGE`."""
        return self.change(GRANTS, key, **fields)

    def revoke(self, key: str, **fields: Any) -> Response:
        """POST a revoke; `fields` replace those of `CHANGE`."""
        return self.change(REVOKES, key, **fields)

    def extend(self, key: str, expires_at: str | None, **fields: Any) -> Response:
        """POST an extension; `fields` replace those of `CHANGE`."""
        return self.change(EXTENSIONS, key, expires_at=expires_at, **fields)

    def change(self, path: str, key: str, *, caller: str | None = None, **fields: Any) -> Response:
        """POST a change as `caller`."""
        context: dict[str, Any] = {"requestId": str(uuid.uuid4()), "authorizer": CALLER}
        if caller is not None:
            context["authorizer"] = CALLER | {"principalId": caller}
        body = json.dumps(CHANGE | fields)
        return self.send(event("POST", path, headers={"Idempotency-Key": key}, body=body, requestContext=context))

    def batch(self, *items: object, **fields: Any) -> Response:
        """POST a batch of items, which `item` makes; `fields` replace those of the batch."""
        return self.send(event("POST", BATCHES, body=json.dumps({"items": items} | fields)))

    def list_entitlements(self, user_id: str = "u_123", **query: str) -> Response:
        """GET a user's entitlements."""
        path_parameters = {"user_id": quote(user_id, safe="")}
        return self.send(
            event("GET", ENTITLEMENTS, pathParameters=path_parameters, queryStringParameters=query or None)
        )
