"""List a user's entitlements from the system of record."""

from grantwire.entitlements import PageRequest
from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.wiring.routes.entitlements import ApiRuntime


def handle(request: Request, rt: ApiRuntime) -> Response:
    """List one page with one statement; PostgreSQL builds the JSON."""
    page = PageRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.entitlements.list_for_user(page))


handler = HttpHandler({"GET /v1/users/{user_id}/entitlements": handle}, ApiRuntime.build)
