"""Grant an entitlement, at most once for each idempotency key."""

from grantwire.entitlements import ChangeCommand, Operation
from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.runtime.api import ApiRuntime


def handle(request: Request, rt: ApiRuntime) -> Response:
    """Grant in one transaction and one round trip."""
    command = ChangeCommand.parse(request.json_object())
    identity = request.identity(command.fields())
    stored = rt.entitlements.change(Operation.GRANT, command, identity, request.trace_id, request.source_address)
    return Response.from_stored(stored)


handler = HttpHandler({"POST /v1/entitlements/grants": handle}, ApiRuntime.build)
