"""Create, list, rotate or revoke service clients, for an operator.

The event: `{"action": "create", "name": "shop", "scopes": ["entitlements:write"], "expires_in": "90d"}`,
`{"action": "rotate", "client_id": "…", "overlap": "24h"}`, `{"action": "revoke", "client_id": "…"}` or
`{"action": "list"}`. The answer to create and rotate has the token, which is kept nowhere.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.clients.commands import ClientCommand
from grantwire.entrypoints.task import TaskHandler
from grantwire.runtime.clients import CallerRuntime


def handle(event: Mapping[str, Any], rt: CallerRuntime) -> dict[str, Any]:
    """One action, over a connection of its own: the next one may be days away."""
    try:
        return ClientCommand.parse(event).execute(rt.clients)
    finally:
        rt.close()


handler = TaskHandler("manage_clients", CallerRuntime.build, handle, secret_result=True)
