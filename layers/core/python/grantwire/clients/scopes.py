"""The scopes of clients, and the scope that each route requires."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """A permission of a client. A client has one or more scopes."""

    WRITE_ENTITLEMENTS = "entitlements:write"
    READ_ENTITLEMENTS = "entitlements:read"
    READ_NOTIFICATIONS = "notifications:read"
    OPERATE = "ops"


# Every route of the API with its required scope. The authorizer denies all routes that are not listed here.
ROUTES = {
    "POST /v1/entitlements/grants": Scope.WRITE_ENTITLEMENTS,
    "POST /v1/entitlements/revokes": Scope.WRITE_ENTITLEMENTS,
    "GET /v1/users/{user_id}/entitlements": Scope.READ_ENTITLEMENTS,
    "GET /v1/users/{user_id}/summary": Scope.READ_ENTITLEMENTS,
    "GET /debug/notification/inbox/{user_id}": Scope.READ_NOTIFICATIONS,
}
