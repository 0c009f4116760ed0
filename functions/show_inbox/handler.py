"""List the notifications of a user, if the route is enabled."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.notifications import list_notifications
from grantwire.wiring.routes.show_inbox import NotificationListRuntime

handler = HttpHandler({"GET /debug/notification/inbox/{user_id}": list_notifications}, NotificationListRuntime.build)
