"""Return the summary of a user's entitlements from the read model."""

from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.read_model.summary import parse_user_id
from grantwire.runtime.summary import SummaryRuntime


def handle(request: Request, rt: SummaryRuntime) -> Response:
    """Read the summary with one statement; PostgreSQL builds the JSON."""
    user_id = parse_user_id(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.summaries.get(user_id))


handler = HttpHandler("GET /v1/users/{user_id}/summary", SummaryRuntime.build, handle)
