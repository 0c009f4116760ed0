"""SQL statements for service clients: the authorizer reads them; operators create, rotate and revoke them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from grantwire.clients.tokens import Token, generate_client_id
from grantwire.database import wrap_exceptions
from grantwire.errors import ClientExistsError, NotFoundError
from grantwire.operator_actions import OperatorAction, record_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from grantwire.clients.scopes import Scope
    from grantwire.database import Connection, Database
    from grantwire.operator_actions import Operator

# The statement always returns one row. The database's clock decides whether the previous hash is still valid. The
# authorizer compares the hashes, in constant time. For an unknown id, the last column has the ids of all clients, so
# that further unknown ids need no statement: those that are not revoked, or were revoked in the last 30 days, whose
# owners may still ask why. It is NULL if there are more than 10,000, because a client that is not in the list would be
# refused. Only a role that may write the last use is asked to. The role of operate_clients, which authenticates its
# callers on a local stack, may not (ADR 0019).
_FIND = """
SELECT c.client_id, c.scopes, c.token_hash,
       CASE WHEN c.previous_until > now() THEN c.previous_hash END,
       CASE WHEN c.revoked_at IS NOT NULL THEN 'revoked'
            WHEN client_expires_at(c.client_id) <= now() THEN 'expired' END,
       (c.last_used_at IS NULL OR c.last_used_at < now() - interval '1 minute')
           AND has_column_privilege('api_clients', 'last_used_at', 'UPDATE'),
       CASE WHEN c.client_id IS NULL THEN (
           SELECT CASE WHEN count(*) <= 10000 THEN coalesce(array_agg(known.client_id), '{}') END
             FROM (SELECT client_id FROM api_clients
                    WHERE revoked_at IS NULL OR revoked_at > now() - interval '30 days' LIMIT 10001) known) END
  FROM (VALUES (%(client_id)s::text)) AS requested (client_id)
  LEFT JOIN api_clients c ON c.client_id = requested.client_id
"""

# SKIP LOCKED: no request waits for this update. If the row is locked, a later request records the use.
_RECORD_USE = """
WITH unlocked AS (
    SELECT client_id FROM api_clients
     WHERE client_id = %(client_id)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
       FOR NO KEY UPDATE SKIP LOCKED),
used AS (UPDATE api_clients c SET last_used_at = now() FROM unlocked u WHERE c.client_id = u.client_id)
SELECT true
"""

# Changes of clients are rare and are made one after the other. So a client that is created while those above it are
# revoked is either revoked, too, or refused.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('grantwire'), hashtext('api_clients'))"

# A client expires with those above it, whatever its own time is.
_CREATE = """
INSERT INTO api_clients (client_id, name, scopes, token_hash, expires_at, rate_limit, burst_limit, created_by)
VALUES (%(client_id)s, %(name)s, %(scopes)s, %(hash)s, now() + %(lifetime)s::interval, %(rate_limit)s, %(burst_limit)s,
        %(created_by)s)
ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
RETURNING least(expires_at, client_expires_at(created_by))
"""

# The last condition rejects a client that stays expired, because its new token would never be valid.
_ROTATE = """
UPDATE api_clients
   SET previous_hash = token_hash, previous_until = now() + %(overlap)s::interval,
       token_hash = %(hash)s, rotated_at = now(),
       expires_at = coalesce(now() + %(lifetime)s::interval, expires_at)
 WHERE client_id = %(client_id)s AND revoked_at IS NULL
   AND least(coalesce(now() + %(lifetime)s::interval, expires_at, 'infinity'), client_expires_at(created_by)) > now()
RETURNING least(expires_at, client_expires_at(created_by))
"""

_REVOKE = """
UPDATE api_clients SET revoked_at = coalesce(revoked_at, now()) WHERE client_id = ANY(%(client_ids)s)
RETURNING client_id, revoked_at = now()
"""

# The clients below a client, and which of them are not revoked.
_LIST_BELOW = """
WITH RECURSIVE below AS (
    SELECT c.client_id, c.revoked_at FROM api_clients c WHERE c.created_by = %(client_id)s
     UNION ALL
    SELECT c.client_id, c.revoked_at FROM below b JOIN api_clients c ON c.created_by = b.client_id)
SELECT client_id FROM below WHERE revoked_at IS NULL ORDER BY client_id
"""

_SET_LIMITS = """
UPDATE api_clients SET rate_limit = %(rate_limit)s, burst_limit = %(burst_limit)s
 WHERE client_id = %(client_id)s AND revoked_at IS NULL
RETURNING client_id
"""

_LIST = """
SELECT client_id, name, scopes, created_at, created_by, rotated_at, previous_until,
       client_expires_at(client_id) AS expires_at, revoked_at, last_used_at, rate_limit, burst_limit
  FROM api_clients ORDER BY name, created_at
"""


@dataclass(frozen=True, slots=True)
class Client:
    """A client as the authorizer reads it. `inactive_reason` is 'revoked', 'expired' or None."""

    client_id: str
    scopes: frozenset[str]
    token_hashes: tuple[str, ...]
    inactive_reason: str | None
    should_record_use: bool


class ClientLimits(NamedTuple):
    """The limits of one client: requests per second and burst. None means the default of the installation."""

    rate_limit: int | None = None
    burst_limit: int | None = None


DEFAULT_LIMITS = ClientLimits()


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token and the time when its client expires, in RFC 3339; None if it never expires."""

    token: Token
    expires_at: str | None


class Revocation(NamedTuple):
    """How many clients below a revoked one were revoked with it, and how many are not revoked."""

    descendants_revoked: int
    descendants_active: int


class Clients:
    """The service clients in PostgreSQL.

    Each change commits together with its row in `operator_actions`: in a transaction of its own, or in the caller's
    transaction `within`. Changes are made one after the other.
    """

    def __init__(self, database: Database, environment: str) -> None:
        self._database = database
        self._environment = environment

    @contextmanager
    def _transaction(self, within: Connection | None) -> Iterator[Connection]:
        if within is not None:
            with wrap_exceptions():
                lock_changes(within)
                yield within
            return
        with self._database.session() as tx, tx.transaction(), wrap_exceptions():
            lock_changes(tx)
            yield tx

    def find(self, client_id: str) -> Client | None:
        """Return the client, or None if there is no such client."""
        return self.find_or_list_ids(client_id)[0]

    def find_or_list_ids(self, client_id: str) -> tuple[Client | None, frozenset[str] | None]:
        """Return the client, or None and the ids of all clients, with one statement.

        The ids are without clients that were revoked more than 30 days ago, and None if there are more than 10,000.
        """
        row = self._database.fetch_row(_FIND, {"client_id": client_id})
        known_id, scopes, current_hash, previous_hash, inactive_reason, should_record_use, ids = row
        if known_id is None:
            return None, None if ids is None else frozenset(ids)
        hashes = (current_hash,) if previous_hash is None else (current_hash, previous_hash)
        return Client(known_id, frozenset(scopes), hashes, inactive_reason, should_record_use), frozenset()

    def record_use(self, client_id: str) -> None:
        """Update the client's last use, at most once a minute."""
        self._database.fetch_row(_RECORD_USE, {"client_id": client_id})

    def create(  # noqa: PLR0913  # the columns of a new client
        self,
        operator: Operator,
        name: str,
        scopes: Sequence[Scope],
        lifetime: timedelta | None = None,
        limits: ClientLimits = DEFAULT_LIMITS,
        *,
        created_by: str | None = None,
        within: Connection | None = None,
    ) -> IssuedToken:
        """Create a client and its first token. `created_by` is the client above it, if there is one.

        Raise ClientExistsError if a client with this name exists that was not revoked.
        """
        token = Token.mint(self._environment, generate_client_id())
        parameters = {"client_id": token.client_id, "hash": token.hash, "name": name, "scopes": list(scopes)}
        selection = {"name": name, "scopes": list(scopes), "expires_in": _to_text(lifetime), **limits._asdict()}
        action = OperatorAction(operator, "create", "client", selection)
        with self._transaction(within) as tx:
            details = {"lifetime": lifetime, "created_by": created_by, **limits._asdict()}
            row = tx.execute(_CREATE, {**parameters, **details}).fetchone()
            if row is None:
                raise ClientExistsError(f'client "{name}" already exists')
            record_client(tx, action, token.client_id)
        return IssuedToken(token, _to_json_value(row[0]))

    def rotate(
        self,
        operator: Operator,
        client_id: str,
        overlap: timedelta,
        lifetime: timedelta | None = None,
        *,
        within: Connection | None = None,
    ) -> IssuedToken:
        """Create a new token for a client.

        The current token stays valid for `overlap`; an older token ends immediately. The client expires as before,
        unless `lifetime` sets a new time. Raise NotFoundError if the client does not exist, was revoked, or stays
        expired, because `lifetime` is None or because a client above it has expired.
        """
        token = Token.mint(self._environment, client_id)
        parameters = {"client_id": client_id, "hash": token.hash, "overlap": overlap, "lifetime": lifetime}
        selection = {"overlap": _to_text(overlap), "expires_in": _to_text(lifetime)}
        action = OperatorAction(operator, "rotate", "client", selection)
        with self._transaction(within) as tx:
            row = tx.execute(_ROTATE, parameters).fetchone()
            if row is None:
                raise NotFoundError(
                    f'client "{client_id}" does not exist, was revoked, or has expired and needs expires_in; one that'
                    " was created by a client also expires with that"
                )
            record_client(tx, action, client_id)
        return IssuedToken(token, _to_json_value(row[0]))

    def revoke(
        self, operator: Operator, client_id: str, *, with_descendants: bool = False, within: Connection | None = None
    ) -> Revocation:
        """Revoke a client permanently, and the clients below it if asked for.

        Revoking it again changes nothing and is recorded, too. Its tokens stop working within the authorizer's cache
        time. Raise NotFoundError if there is no such client.
        """
        action = OperatorAction(operator, "revoke", "client", {"with_descendants": with_descendants})
        with self._transaction(within) as tx:
            below = [row[0] for row in tx.execute(_LIST_BELOW, {"client_id": client_id}).fetchall()]
            client_ids = [client_id, *(below if with_descendants else ())]
            revoked = dict(tx.execute(_REVOKE, {"client_ids": client_ids}).fetchall())
            if client_id not in revoked:
                raise NotFoundError(f'client "{client_id}" does not exist')
            for batch, revoked_id in enumerate(client_ids):
                record_client(tx, action, revoked_id, batch, changed=revoked[revoked_id])
        return Revocation(len(below), 0) if with_descendants else Revocation(0, len(below))

    def set_limits(
        self, operator: Operator, client_id: str, limits: ClientLimits, *, within: Connection | None = None
    ) -> None:
        """Replace the limits of a client; they apply to its next chunk of tokens, within a second.

        Raise NotFoundError if the client does not exist or was revoked.
        """
        action = OperatorAction(operator, "limits", "client", limits._asdict())
        with self._transaction(within) as tx:
            if tx.execute(_SET_LIMITS, {"client_id": client_id, **limits._asdict()}).fetchone() is None:
                raise NotFoundError(f'client "{client_id}" does not exist or was revoked')
            record_client(tx, action, client_id)

    def list_all(self) -> list[dict[str, Any]]:
        """Return all clients ordered by name, without token hashes; times are in RFC 3339."""
        with self._database.session() as tx:
            cursor = tx.execute(_LIST)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, map(_to_json_value, row), strict=True)) for row in cursor.fetchall()]


def lock_changes(tx: Connection) -> None:
    """Wait until no other transaction changes clients, and keep others waiting until this one ends."""
    tx.execute(_LOCK)


def _to_json_value(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def _to_text(duration: timedelta | None) -> str | None:
    return None if duration is None else str(duration)
