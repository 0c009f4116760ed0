"""Administration of clients by a client that has the scope for it (T1).

`clients/authority.py` decides what the caller may do. A change runs at most once for an idempotency key. The stored
response contains no token, because a token is stored nowhere: a repeat gets `token: null`.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from grantwire.clients.authority import authorize
from grantwire.clients.commands import ClientCommand
from grantwire.errors import BadRequestError, NotFoundError
from grantwire.idempotency.requests import StoredResponse, raise_for_outcome
from grantwire.operations.parsing import format_time
from grantwire.validation import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grantwire.clients.limits import LimitSettings
    from grantwire.clients.store import Clients
    from grantwire.database import Database
    from grantwire.idempotency import IdempotencySettings, RequestIdentity

_CLIENT_ID = re.compile(r"[a-z0-9]{12}")
# These fields of a command are not part of the body: the path has them.
_PATH_FIELDS = ("action", "client_id")
_TIMES = ("created_at", "rotated_at", "previous_until", "expires_at", "revoked_at", "last_used_at")

# The SQL functions accept only the routes that administrate clients (infra/sql/functions/client_request_*.sql).
_BEGIN = """
SELECT decision, status_code, body
  FROM client_request_begin(%(caller)s, %(route)s, %(key)s, %(request_hash)s, %(lock_wait_ms)s::integer)
"""

_FINISH = """
SELECT client_request_finish(
  %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(status_code)s::integer, %(body)s, %(ttl)s)
"""


def parse_change(action: str, client_id: str | None, body: Mapping[str, Any]) -> ClientCommand:
    """Return the command of a request; `client_id` is None for a new client.

    Raises BadRequestError for an invalid body, NotFoundError for an id that no client can have.
    """
    for name in _PATH_FIELDS:
        if name in body:
            raise BadRequestError(f"unknown field {name[:MAX_NAME_LENGTH]!a} in the body")
    event: dict[str, Any] = {"action": action, **body}
    if client_id is not None:
        if not _CLIENT_ID.fullmatch(client_id):
            raise NotFoundError("no such client")
        event["client_id"] = client_id
    return ClientCommand.parse(event)


class ClientAdministration:
    """Lists and changes clients, with the role of the administration of clients.

    `limits` are those of clients that have none of their own.
    """

    def __init__(
        self, database: Database, clients: Clients, settings: IdempotencySettings, limits: LimitSettings
    ) -> None:
        self._database = database
        self._clients = clients
        self._settings = settings
        self._limits = limits

    def list_all(self) -> dict[str, Any]:
        """Return all clients ordered by name, without tokens, as the JSON object of the response."""
        return {"clients": [_format_times(client) for client in self._clients.list_all()]}

    def change(self, identity: RequestIdentity, command: ClientCommand, source: str) -> StoredResponse:
        """Execute the command for the caller of the request, and return the response.

        Raises ForbiddenError if the caller may not do this, ClientExistsError, NotFoundError, KeyConflictError and
        RequestInProgressError. Then nothing has changed.
        """
        lock_wait_ms = int(self._settings.lock_wait.total_seconds() * 1000)
        parameters = identity._asdict()
        with self._database.transaction(_BEGIN, {**parameters, "lock_wait_ms": lock_wait_ms}) as tx:
            outcome, status_code, body = tx.first
            if outcome != "PROCEED":
                tx.end_unchanged()
                raise_for_outcome(outcome)
                return StoredResponse(status_code, body, outcome)
            permitted = authorize(tx.connection, identity.caller, command, self._limits)
            result = permitted.execute(self._clients, source, tx.connection)
            stored = {name: None if name == "token" else value for name, value in result.items()}
            tx.commit(_FINISH, {**parameters, "status_code": 200, "body": _encode(stored), "ttl": self._settings.ttl})
        return StoredResponse(200, _encode(result))


def _encode(result: Mapping[str, Any]) -> str:
    return json.dumps(_format_times(result), separators=(",", ":"))


def _format_times(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: format_time(datetime.fromisoformat(value)) if name in _TIMES and value is not None else value
        for name, value in result.items()
    }
