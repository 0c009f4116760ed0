"""List the notifications of a user, if the route is enabled."""

from grantwire.entrypoints.http import HttpHandler, Request, Response
from grantwire.errors import NotFoundError
from grantwire.notifications.listing import NotificationPageRequest
from grantwire.wiring.routes.show_inbox import NotificationListRuntime


def handle(request: Request, rt: NotificationListRuntime) -> Response:
    """List the newest notifications with one statement; PostgreSQL builds the JSON."""
    if rt.notification_list is None:
        raise NotFoundError("no such path")
    page = NotificationPageRequest.parse(request.path_parameters.get("user_id"), request.query)
    return Response(200, rt.notification_list.list_for_user(page))


handler = HttpHandler({"GET /debug/notification/inbox/{user_id}": handle}, NotificationListRuntime.build)
