"""The scopes of clients, the scope that each route requires, and the name of a caller that is no client."""

from __future__ import annotations

from enum import StrEnum

ANONYMOUS = "anonymous"  # the caller of a request without a valid token


class Scope(StrEnum):
    """A permission of a client. A client has one or more scopes."""

    WRITE_ENTITLEMENTS = "entitlements:write"
    READ_ENTITLEMENTS = "entitlements:read"
    READ_NOTIFICATIONS = "notifications:read"
    READ_CHANGES = "changes:read"
    READ_OPERATIONS = "ops:read"
    WRITE_OPERATIONS = "ops:write"
    READ_CLIENTS = "clients:read"
    WRITE_CLIENTS = "clients:write"


# Every route of the API with its required scope. The authorizer denies all routes that are not listed here.
ROUTES = {
    "POST /v1/entitlements/grants": Scope.WRITE_ENTITLEMENTS,
    "POST /v1/entitlements/revokes": Scope.WRITE_ENTITLEMENTS,
    "POST /v1/entitlements/extensions": Scope.WRITE_ENTITLEMENTS,
    "POST /v1/entitlements/batches": Scope.WRITE_ENTITLEMENTS,
    "GET /v1/users/{user_id}/entitlements": Scope.READ_ENTITLEMENTS,
    "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}": Scope.READ_ENTITLEMENTS,
    "GET /v1/users/{user_id}/entitlements/{stock_keeping_unit}/history": Scope.READ_ENTITLEMENTS,
    "POST /v1/entitlements/checks": Scope.READ_ENTITLEMENTS,
    "GET /v1/users/{user_id}/summary": Scope.READ_ENTITLEMENTS,
    "GET /v1/changes": Scope.READ_CHANGES,
    "GET /v1/snapshot": Scope.READ_CHANGES,
    "GET /debug/notification/inbox/{user_id}": Scope.READ_NOTIFICATIONS,
    "GET /v1/ops/status": Scope.READ_OPERATIONS,
    "GET /v1/ops/samples": Scope.READ_OPERATIONS,
    "GET /v1/ops/dead-letters": Scope.READ_OPERATIONS,
    "GET /v1/ops/dead-letters/groups": Scope.READ_OPERATIONS,
    "GET /v1/ops/dead-letters/{kind}/{dead_letter_id}": Scope.READ_OPERATIONS,
    "POST /v1/ops/dead-letters/redrive": Scope.WRITE_OPERATIONS,
    "POST /v1/ops/dead-letters/discard": Scope.WRITE_OPERATIONS,
    "POST /v1/ops/read-model/rebuild": Scope.WRITE_OPERATIONS,
    "POST /v1/ops/read-model/verify": Scope.WRITE_OPERATIONS,
    "GET /v1/ops/commands": Scope.READ_OPERATIONS,
    "GET /v1/ops/commands/{command_id}": Scope.READ_OPERATIONS,
    "GET /v1/ops/trace": Scope.READ_OPERATIONS,
    "GET /v1/ops/clients": Scope.READ_CLIENTS,
    "POST /v1/ops/clients": Scope.WRITE_CLIENTS,
    "POST /v1/ops/clients/{client_id}/rotate": Scope.WRITE_CLIENTS,
    "POST /v1/ops/clients/{client_id}/revoke": Scope.WRITE_CLIENTS,
    "POST /v1/ops/clients/{client_id}/limits": Scope.WRITE_CLIENTS,
}

# Routes for every token of a client, whatever its scopes, also after the client expired or was revoked (T10). A client
# reads there what is wrong with its own token, so they must contain nothing else.
CLIENT_ROUTES = frozenset({"GET /v1/me"})

# Routes without an authorizer: every caller may use them, so they must contain no data.
PUBLIC_ROUTES = frozenset({"GET /console"})
