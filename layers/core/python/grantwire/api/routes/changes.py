"""The handler of the routes that change one entitlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.http import HttpHandler
from grantwire.api.responses import Response
from grantwire.entitlements import ChangeCommand
from grantwire.wiring.routes.entitlements import ApiRuntime

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.entitlements import Operation


def change_handler(operation: Operation) -> HttpHandler[ApiRuntime]:
    """Return the handler of the route that executes `operation` in one transaction and one round trip."""

    def handle(request: Request, rt: ApiRuntime) -> Response:
        command = ChangeCommand.parse(operation, request.json_object())
        identity = request.identity(command.fields())
        stored = rt.entitlements.change(
            command, identity, request.trace_id, request.source_address, request.correlation_id
        )
        return Response.from_stored(stored)

    return HttpHandler({operation.route: handle}, ApiRuntime.build)
