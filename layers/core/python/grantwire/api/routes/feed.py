"""The routes of the change feed and of the snapshot to begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.feed import ChangesRequest, SnapshotRequest

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.wiring.routes.list_changes import ChangesRuntime


def list_changes(request: Request, rt: ChangesRuntime) -> Response:
    """Return the changes after a cursor; wait for one if the request asks for it."""
    return Response(200, rt.feed.list(ChangesRequest.parse(request.query), request.authenticated_caller()))


def read_snapshot(request: Request, rt: ChangesRuntime) -> Response:
    """Return one page of all entitlements with one statement."""
    return Response(200, rt.snapshot.list(SnapshotRequest.parse(request.query)))
