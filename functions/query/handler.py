"""List a user's entitlements from the system of record."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.entitlements import list_for_user
from grantwire.wiring.routes.entitlements import ApiRuntime

handler = HttpHandler({"GET /v1/users/{user_id}/entitlements": list_for_user}, ApiRuntime.build)
