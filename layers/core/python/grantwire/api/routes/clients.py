"""The routes of the operations API that administrate clients (T1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.operations.clients import parse_change
from grantwire.validation import single_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grantwire.api.request import Request
    from grantwire.wiring.routes.operate_clients import ClientOperationsRuntime

    Route = Callable[[Request, ClientOperationsRuntime], Response]


def list_clients(request: Request, rt: ClientOperationsRuntime) -> Response:
    """List all clients, without tokens."""
    single_values(request.query)
    return Response.from_json(rt.administration.list_all())


def change_client(action: str, request: Request, rt: ClientOperationsRuntime) -> Response:
    """Create, rotate, revoke or limit a client, at most once for the idempotency key."""
    single_values(request.query)
    body = request.json_object()
    client_id = request.path_parameters.get("client_id")
    command = parse_change(action, client_id, body)
    identity = request.identity({"client_id": client_id, **body})
    stored = rt.administration.change(identity, command, request.source)
    return Response.from_stored(stored)


ROUTES: Mapping[str, Route] = {
    "GET /v1/ops/clients": list_clients,
    "POST /v1/ops/clients": partial(change_client, "create"),
    "POST /v1/ops/clients/{client_id}/rotate": partial(change_client, "rotate"),
    "POST /v1/ops/clients/{client_id}/revoke": partial(change_client, "revoke"),
    "POST /v1/ops/clients/{client_id}/limits": partial(change_client, "limits"),
}
