"""Return the summary of a user's entitlements from the read model."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.summary import show_summary
from grantwire.wiring.routes.show_summary import SummaryRuntime

handler = HttpHandler({"GET /v1/users/{user_id}/summary": show_summary}, SummaryRuntime.build)
