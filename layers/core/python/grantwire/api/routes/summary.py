"""The route of the summary of a user's entitlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.validation import PageRequest

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.wiring.routes.show_summary import SummaryRuntime


def show_summary(request: Request, rt: SummaryRuntime) -> Response:
    """Read the summary with one statement; PostgreSQL builds the JSON."""
    page = PageRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.summaries.get(page))
