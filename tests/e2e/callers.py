"""Clients of the deployed API, created with the function manage_clients as an operator does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.clients.scopes import Scope
from tests.e2e.aws import invoke

if TYPE_CHECKING:
    from infra.local.stack.embedded import EmbeddedStack


@dataclass(frozen=True)
class Caller:
    """A client that was created for a test."""

    client_id: str
    token: str


def create_caller(stack: EmbeddedStack, *scopes: str) -> Caller:
    """Create a client with these scopes, or with all. Its token is not in the cache of API Gateway yet."""
    result = manage_clients(stack, action="create", name=f"e2e {uuid.uuid4()}", scopes=list(scopes or Scope))
    return Caller(result["client_id"], result["token"])


def manage_clients(stack: EmbeddedStack, **command: Any) -> Any:
    """Invoke the deployed function manage_clients and return its result."""
    operator = {} if command["action"] == "list" else {"actor": "e2e", "reason": "a test"}
    result = invoke(stack, "manage-clients", command | operator)
    assert "errorMessage" not in result
    return result
