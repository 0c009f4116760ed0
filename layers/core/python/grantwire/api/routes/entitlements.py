"""The route that lists a user's entitlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.entitlements import ListRequest

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.wiring.routes.entitlements import ApiRuntime


def list_for_user(request: Request, rt: ApiRuntime) -> Response:
    """List one page with one statement; PostgreSQL builds the JSON."""
    asked = ListRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.entitlements.list_for_user(asked))
