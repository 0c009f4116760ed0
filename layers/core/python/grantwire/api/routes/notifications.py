"""The route that lists the notifications of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.api.responses import Response
from grantwire.errors import NotFoundError
from grantwire.notifications.listing import NotificationPageRequest

if TYPE_CHECKING:
    from grantwire.api.request import Request
    from grantwire.wiring.routes.show_inbox import NotificationListRuntime


def list_notifications(request: Request, rt: NotificationListRuntime) -> Response:
    """List the newest notifications with one statement; PostgreSQL builds the JSON."""
    if rt.notification_list is None:
        raise NotFoundError("no such path")
    page = NotificationPageRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.notification_list.list_for_user(page))
