"""Return pages of the change feed, and of the snapshot to begin with."""

from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.feed import ChangesRequest, SnapshotRequest
from grantwire.wiring.routes.list_changes import ChangesRuntime


def list_changes(request: Request, rt: ChangesRuntime) -> Response:
    """Return the changes after a cursor; wait for one if the request asks for it."""
    return Response(200, rt.feed.list(ChangesRequest.parse(request.query), request.authenticated_caller()))


def read_snapshot(request: Request, rt: ChangesRuntime) -> Response:
    """Return one page of all entitlements with one statement."""
    return Response(200, rt.snapshot.list(SnapshotRequest.parse(request.query)))


handler = HttpHandler({"GET /v1/changes": list_changes, "GET /v1/snapshot": read_snapshot}, ChangesRuntime.build)
