"""Return the summary of a user's entitlements from the read model."""

from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.validation import PageRequest
from grantwire.wiring.routes.show_summary import SummaryRuntime


def handle(request: Request, rt: SummaryRuntime) -> Response:
    """Read the summary with one statement; PostgreSQL builds the JSON."""
    page = PageRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.summaries.get(page))


handler = HttpHandler({"GET /v1/users/{user_id}/summary": handle}, SummaryRuntime.build)
