"""The SQL of service clients: looked up by the authorizer, made and ended by an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.callers.tokens import Token, new_client_id
from grantwire.database import refusing_data
from grantwire.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from grantwire.callers.scopes import Scope
    from grantwire.database import Connection, Database

# Always one row, so that an unknown id takes as long as a known one. Which of the two hashes counts is decided here, by
# the database's clock; the comparison with the token's is the authorizer's, in constant time.
_FIND = """
SELECT c.client_id, c.scopes, c.token_hash,
       CASE WHEN c.previous_until > now() THEN c.previous_hash END,
       CASE WHEN c.revoked_at IS NOT NULL THEN 'revoked' WHEN c.expires_at <= now() THEN 'expired' END,
       c.last_used_at IS NULL OR c.last_used_at < now() - interval '1 minute'
  FROM (VALUES (%(client_id)s::text)) AS asked (client_id)
  LEFT JOIN api_clients c ON c.client_id = asked.client_id
"""

_SEEN = """
WITH seen AS (UPDATE api_clients SET last_used_at = now()
               WHERE client_id = %(client_id)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute'))
SELECT true
"""

_CREATE = """
INSERT INTO api_clients (client_id, name, scopes, token_hash, expires_at)
VALUES (%(client_id)s, %(name)s, %(scopes)s, %(hash)s, now() + %(lifetime)s::interval)
"""

_ROTATE = """
UPDATE api_clients
   SET previous_hash = token_hash, previous_until = now() + %(overlap)s::interval,
       token_hash = %(hash)s, rotated_at = now(),
       expires_at = coalesce(now() + %(lifetime)s::interval, expires_at)
 WHERE client_id = %(client_id)s AND revoked_at IS NULL
"""

_REVOKE = """
UPDATE api_clients SET revoked_at = coalesce(revoked_at, now()) WHERE client_id = %(client_id)s
"""

_LIST = """
SELECT client_id, name, scopes, created_at, rotated_at, previous_until, expires_at, revoked_at, last_used_at
  FROM api_clients ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class Client:
    """What the authorizer needs to know of a client; `refusal` says why it may do nothing."""

    client_id: str
    scopes: frozenset[str]
    hashes: tuple[str, ...]
    refusal: str | None
    worth_noting: bool


class Clients:
    """Service clients in PostgreSQL."""

    def __init__(self, database: Database, environment: str) -> None:
        self._database = database
        self._environment = environment

    def find(self, client_id: str) -> Client | None:
        """The client, or None."""
        found, scopes, current, previous, refusal, stale = self._database.fetch_row(_FIND, {"client_id": client_id})
        if found is None:
            return None
        hashes = (current,) if previous is None else (current, previous)
        return Client(found, frozenset(scopes), hashes, refusal, stale)

    def seen(self, client_id: str) -> None:
        """Note that the client was there, at most once a minute."""
        self._database.fetch_row(_SEEN, {"client_id": client_id})

    def create(self, name: str, scopes: Sequence[Scope], lifetime: timedelta | None = None) -> Token:
        """A new client with its first token, which nobody can ask for again."""
        token = Token.mint(self._environment, new_client_id())
        with self._database.session() as tx, refusing_data():
            parameters = {"name": name, "scopes": list(scopes), "lifetime": lifetime}
            tx.execute(_CREATE, {"client_id": token.client_id, "hash": token.hash, **parameters})
        return token

    def rotate(self, client_id: str, overlap: timedelta, lifetime: timedelta | None = None) -> Token:
        """A new token for a client; the one before it goes on for `overlap`, and older ones end now."""
        token = Token.mint(self._environment, client_id)
        with self._database.session() as tx:
            parameters = {"overlap": overlap, "lifetime": lifetime}
            self._one(tx, _ROTATE, {"client_id": client_id, "hash": token.hash, **parameters})
        return token

    def revoke(self, client_id: str) -> None:
        """End a client for good, within the authorizer's cache time. Doing it twice changes nothing."""
        with self._database.session() as tx:
            self._one(tx, _REVOKE, {"client_id": client_id})

    def all(self) -> list[dict[str, Any]]:
        """Every client, without hashes, by name; times in RFC 3339."""
        with self._database.session() as tx:
            cursor = tx.execute(_LIST)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]

    @staticmethod
    def _one(tx: Connection, statement: Any, parameters: dict[str, Any]) -> None:
        if tx.execute(statement, parameters).rowcount != 1:
            raise NotFoundError("no such client, or it was revoked")


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
