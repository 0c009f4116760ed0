"""Service clients of the deployed stack, made as an operator makes them."""

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
    """A client that was made for a test."""

    client_id: str
    token: str


def created(stack: EmbeddedStack, *scopes: str) -> Caller:
    """A new client, who may do everything unless scopes are given; API Gateway has not seen its token yet."""
    answer = manage(stack, action="create", name=f"e2e {uuid.uuid4()}", scopes=list(scopes or Scope))
    return Caller(answer["client_id"], answer["token"])


def manage(stack: EmbeddedStack, **order: Any) -> Any:
    """What the deployed function manage_clients answers."""
    answer = invoke(stack, "manage-clients", order)
    assert "errorMessage" not in answer
    return answer
