"""What a caller may be allowed to do, and which route needs what."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """One permission; a client has any number of them."""

    WRITE_ENTITLEMENTS = "entitlements:write"
    READ_ENTITLEMENTS = "entitlements:read"
    READ_NOTIFICATIONS = "notifications:read"
    OPERATE = "ops"


# Every route of the API. What is not here is open to nobody.
ROUTES = {
    "POST /v1/entitlements/grants": Scope.WRITE_ENTITLEMENTS,
    "POST /v1/entitlements/revokes": Scope.WRITE_ENTITLEMENTS,
    "GET /v1/users/{user_id}/entitlements": Scope.READ_ENTITLEMENTS,
    "GET /v1/users/{user_id}/summary": Scope.READ_ENTITLEMENTS,
    "GET /debug/notification/inbox/{user_id}": Scope.READ_NOTIFICATIONS,
}
