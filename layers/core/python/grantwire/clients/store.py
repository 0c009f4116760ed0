"""The SQL of service clients: looked up by the authorizer, made and ended by an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.clients.tokens import Token, new_client_id
from grantwire.database import wrap_exceptions
from grantwire.errors import NotFoundError, RejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta
    from typing import LiteralString

    from grantwire.clients.scopes import Scope
    from grantwire.database import Database

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

# Whoever has the row locked notes it anyway: nobody's request waits for this.
_SEEN = """
WITH free AS (
    SELECT client_id FROM api_clients
     WHERE client_id = %(client_id)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
       FOR NO KEY UPDATE SKIP LOCKED),
seen AS (UPDATE api_clients c SET last_used_at = now() FROM free WHERE c.client_id = free.client_id)
SELECT true
"""

_CREATE = """
INSERT INTO api_clients (client_id, name, scopes, token_hash, expires_at)
VALUES (%(client_id)s, %(name)s, %(scopes)s, %(hash)s, now() + %(lifetime)s::interval)
ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
RETURNING expires_at
"""

# A token for a client that is at its end would be of no use.
_ROTATE = """
UPDATE api_clients
   SET previous_hash = token_hash, previous_until = now() + %(overlap)s::interval,
       token_hash = %(hash)s, rotated_at = now(),
       expires_at = coalesce(now() + %(lifetime)s::interval, expires_at)
 WHERE client_id = %(client_id)s AND revoked_at IS NULL
   AND coalesce(now() + %(lifetime)s::interval, expires_at, 'infinity') > now()
RETURNING expires_at
"""

_REVOKE = """
UPDATE api_clients SET revoked_at = coalesce(revoked_at, now()) WHERE client_id = %(client_id)s RETURNING expires_at
"""

_LIST = """
SELECT client_id, name, scopes, created_at, rotated_at, previous_until, expires_at, revoked_at, last_used_at
  FROM api_clients ORDER BY name, created_at
"""


@dataclass(frozen=True, slots=True)
class Client:
    """What the authorizer needs to know of a client; `refusal` says why it may do nothing."""

    client_id: str
    scopes: frozenset[str]
    hashes: tuple[str, ...]
    refusal: str | None
    worth_noting: bool


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that was just made, and when its client ends, in RFC 3339, if it does."""

    token: Token
    expires_at: str | None


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

    def create(self, name: str, scopes: Sequence[Scope], lifetime: timedelta | None = None) -> Issued:
        """A new client with its first token, which nobody can ask for again. Only a revoked client's name is free."""
        token = Token.mint(self._environment, new_client_id())
        given = {"client_id": token.client_id, "hash": token.hash, "name": name, "scopes": list(scopes)}
        row = self._change(_CREATE, {**given, "lifetime": lifetime})
        if row is None:
            raise RejectedError(f"there is a client named {name} already")
        return Issued(token, _plain(row[0]))

    def rotate(self, client_id: str, overlap: timedelta, lifetime: timedelta | None = None) -> Issued:
        """A new token for a client; the one before it goes on for `overlap`, and older ones end now.

        The client's own end stays where it was unless `lifetime` moves it.
        """
        token = Token.mint(self._environment, client_id)
        given = {"client_id": client_id, "hash": token.hash, "overlap": overlap, "lifetime": lifetime}
        row = self._change(_ROTATE, given)
        if row is None:
            raise NotFoundError("no such client, or it was revoked, or it has expired and needs expires_in")
        return Issued(token, _plain(row[0]))

    def revoke(self, client_id: str) -> None:
        """End a client for good, within the authorizer's cache time. Doing it twice changes nothing."""
        if self._change(_REVOKE, {"client_id": client_id}) is None:
            raise NotFoundError("no such client")

    def all(self) -> list[dict[str, Any]]:
        """Every client, without hashes, by name; times in RFC 3339."""
        with self._database.session() as tx:
            cursor = tx.execute(_LIST)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]

    def _change(self, statement: LiteralString, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        with self._database.session() as tx, wrap_exceptions():
            return tx.execute(statement, parameters).fetchone()


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
