"""What a client may know about itself and its token (T10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire.errors import ForbiddenError

if TYPE_CHECKING:
    from grantwire.clients.limits import LimitSettings
    from grantwire.database import Database

# The statement always returns one row. A token that a rotation has replaced ends before its client does.
_READ = """
SELECT c.client_id, jsonb_build_object(
           'client_id', c.client_id, 'name', c.name,
           'state', CASE WHEN c.revoked_at IS NOT NULL THEN 'REVOKED' WHEN e.expires_at <= now() THEN 'EXPIRED'
                         ELSE 'ACTIVE' END,
           'scopes', to_jsonb(c.scopes), 'created_by', c.created_by,
           'expires_at', rfc3339(e.expires_at), 'revoked_at', rfc3339(c.revoked_at),
           'token_expires_at', rfc3339(least(e.expires_at, CASE WHEN %(replaced)s THEN c.previous_until END)),
           'rate_limit', coalesce(c.rate_limit, %(rate)s), 'burst_limit', coalesce(c.burst_limit, %(burst)s))
  FROM (VALUES (%(client_id)s::text, client_expires_at(%(client_id)s))) AS e (client_id, expires_at)
  LEFT JOIN api_clients c ON c.client_id = e.client_id
"""


class OwnClient:
    """Describes a client to itself. `limits` are those of clients that have none of their own."""

    def __init__(self, database: Database, limits: LimitSettings) -> None:
        self._database = database
        self._limits = limits

    def describe(self, client_id: str, *, replaced: bool) -> dict[str, Any]:
        """Return the client as the JSON object of the response; `replaced`: its token was replaced by a rotation.

        Raise ForbiddenError if there is no such client any more.
        """
        limits = {"rate": self._limits.rate, "burst": self._limits.burst}
        parameters = {"client_id": client_id, "replaced": replaced, **limits}
        known_id, description = self._database.fetch_row(_READ, parameters)
        if known_id is None:
            raise ForbiddenError("this client does not exist")
        return dict(description)
