"""Check one entitlement or several, now or as of a past time, and read the history of one."""

from grantwire.api.http import HttpHandler
from grantwire.api.routes.checks import check_many, check_one, count_pairs, list_history
from grantwire.wiring.routes.check_entitlement import CheckRuntime

handler = HttpHandler(
    {
        "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}": check_one,
        "POST /v1/entitlements/checks": check_many,
        "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}/history": list_history,
    },
    CheckRuntime.build,
    weigh=count_pairs,
)
