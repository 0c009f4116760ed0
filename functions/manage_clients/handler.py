"""Create, list, rotate, limit or revoke any client; invoked by an operator.

The event is `{"action": "create", "name": "shop", "scopes": ["entitlements:write"], "expires_in": "90d"}`,
`{"action": "rotate", "client_id": "…", "overlap": "24h"}`, `{"action": "limits", "client_id": "…", "rate_limit": 50}`
or `{"action": "revoke", "client_id": "…", "with_descendants": true}`, each with `actor` and `reason`, or
`{"action": "list"}`. The result of create and rotate contains the token, which is not stored.
"""

from collections.abc import Mapping
from typing import Any

from grantwire.clients.commands import ClientCommand
from grantwire.wiring.tasks.handler import TaskHandler
from grantwire.wiring.tasks.manage_clients import ClientsRuntime


def handle(event: Mapping[str, Any], rt: ClientsRuntime, source: str) -> dict[str, Any]:
    """Execute one command and close the connection, because the next command may be days away."""
    try:
        return ClientCommand.parse(event).execute(rt.clients, source)
    finally:
        rt.close()


handler = TaskHandler("manage_clients", ClientsRuntime.build, handle, secret_result=True)
