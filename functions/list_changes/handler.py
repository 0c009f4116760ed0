"""Return pages of the change feed, and of the snapshot to begin with."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.feed import list_changes, read_snapshot
from grantwire.wiring.routes.list_changes import ChangesRuntime

handler = HttpHandler({"GET /v1/changes": list_changes, "GET /v1/snapshot": read_snapshot}, ChangesRuntime.build)
