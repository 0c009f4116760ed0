"""What a client with the scope clients:write may do with other clients (G11, ADR 0048).

A client is *below* the one that created it, and below all clients above that one. A client gets tokens only of clients
below it, and changes their limits. It revokes these, and clients that have some, but not all, of its scopes. It does
nothing with itself, with equals that it did not create, and with clients that have other scopes. So no two clients can
manage each other. Clients cannot be deleted, so their number below the same first client is limited: otherwise a stolen
token could make so many that nobody can list or look them up. Operators with access to the database are not limited.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from grantwire.clients.store import ClientLimits, lock_changes
from grantwire.errors import ForbiddenError, NotFoundError

if TYPE_CHECKING:
    from grantwire.clients.commands import ClientCommand
    from grantwire.clients.limits import LimitSettings
    from grantwire.database import Connection

# The gateway may have decided about the caller a minute ago.
_READ_CALLER = """
SELECT scopes, rate_limit, burst_limit, revoked_at IS NOT NULL OR client_expires_at(client_id) <= clock_timestamp()
  FROM api_clients WHERE client_id = %(caller)s
"""

_READ_CLIENT = """
WITH RECURSIVE above AS (
    SELECT c.created_by FROM api_clients c WHERE c.client_id = %(client_id)s
     UNION ALL
    SELECT c.created_by FROM above a JOIN api_clients c ON c.client_id = a.created_by)
SELECT c.scopes, EXISTS (SELECT FROM above a WHERE a.created_by = %(caller)s)
  FROM api_clients c WHERE c.client_id = %(client_id)s
"""

MAX_CLIENTS_OF_TREE = 1000
MAX_LEVELS = 10  # each look-up of a client reads all clients above it
# The first client above the caller, which an operator created, and all clients below it: those that are active, and
# those of the last day, so that clients which end at once count, too. And the level of the caller: 1 for the first one.
_COUNT_TREE = """
WITH RECURSIVE above AS (
    SELECT c.client_id, c.created_by FROM api_clients c WHERE c.client_id = %(caller)s
     UNION ALL
    SELECT c.client_id, c.created_by FROM above a JOIN api_clients c ON c.client_id = a.created_by),
tree AS (
    SELECT a.client_id FROM above a WHERE a.created_by IS NULL
     UNION ALL
    SELECT c.client_id FROM tree t JOIN api_clients c ON c.created_by = t.client_id)
SELECT count(*), (SELECT count(*) FROM above) FROM tree t JOIN api_clients c USING (client_id)
 WHERE c.created_at > now() - interval '1 day'
    OR (c.revoked_at IS NULL AND coalesce(c.expires_at > now(), true))
"""

_BELOW = "those that it created, and those that they created"
_RULES = {
    "rotate": f"a client can rotate only clients below it, {_BELOW}",
    "limits": f"a client can limit only clients below it, {_BELOW}",
    "revoke": f"a client can revoke only clients below it, {_BELOW}, and clients with some, but not all, of its scopes",
}


class _Caller(NamedTuple):
    client_id: str
    scopes: frozenset[str]
    limits: ClientLimits


def authorize(tx: Connection, caller: str, command: ClientCommand, defaults: LimitSettings) -> ClientCommand:
    """Return the command as the client `caller` may execute it in the transaction `tx`, which then holds the lock.

    A client that it creates is below it. Limits that are not given are the defaults, but never higher than its own.
    Raise NotFoundError if there is no such client, ForbiddenError if the caller may not do this.
    """
    lock_changes(tx)
    known = _read_caller(tx, caller)
    if command.action == "create":
        _require_scopes(command, known)
        _require_room(tx, known)
        return replace(command, created_by=caller, limits=_limit(command.limits, known, defaults))
    _require_authority(tx, known, command)
    if command.action == "limits":
        return replace(command, limits=_limit(command.limits, known, defaults))
    return command


def _read_caller(tx: Connection, caller: str) -> _Caller:
    row = tx.execute(_READ_CALLER, {"caller": caller}).fetchone()
    if row is None or row[3]:
        raise ForbiddenError("this client does not exist, was revoked or has expired")
    return _Caller(caller, frozenset(row[0]), ClientLimits(row[1], row[2]))


def _require_scopes(command: ClientCommand, caller: _Caller) -> None:
    for scope in sorted(set(command.scopes) - caller.scopes):
        raise ForbiddenError(f"missing required scope {scope}: a client can give only scopes that it has itself")


def _require_room(tx: Connection, caller: _Caller) -> None:
    """Raise ForbiddenError if the tree of the caller has as many clients or levels as it may have."""
    count, level = tx.execute(_COUNT_TREE, {"caller": caller.client_id}).fetchone() or (0, 0)
    if level >= MAX_LEVELS:
        raise ForbiddenError(f"a client with {level - 1} clients above it cannot create clients: ask one of these")
    if count >= MAX_CLIENTS_OF_TREE:
        raise ForbiddenError(
            f"there are {count} clients below the same first client, counting those of the last day and those that are"
            f" active; at most {MAX_CLIENTS_OF_TREE} are possible: revoke some, or ask an operator of the database"
        )


def _require_authority(tx: Connection, caller: _Caller, command: ClientCommand) -> None:
    """Raise the error if the caller may not do this with the client of the command."""
    row = tx.execute(_READ_CLIENT, {"client_id": command.client_id, "caller": caller.client_id}).fetchone()
    if row is None:
        raise NotFoundError("no such client")
    scopes, is_below = frozenset(row[0]), row[1]
    if command.client_id == caller.client_id:
        raise ForbiddenError("a client cannot change itself: ask a client above it, or an operator of the database")
    if is_below or (command.action == "revoke" and scopes < caller.scopes):
        return
    raise ForbiddenError(f'no authority over client "{command.client_id}": {_RULES[command.action]}')


def _limit(requested: ClientLimits, caller: _Caller, defaults: LimitSettings) -> ClientLimits:
    """Return the limits of a client below the caller. Raise ForbiddenError if one is higher than the caller's own."""
    return ClientLimits(
        _lower("rate_limit", requested.rate_limit, caller.limits.rate_limit, defaults.rate),
        _lower("burst_limit", requested.burst_limit, caller.limits.burst_limit, defaults.burst),
    )


def _lower(name: str, requested: int | None, own: int | None, default: int) -> int | None:
    highest = default if own is None else own
    if requested is None:
        return None if default <= highest else highest
    if requested > highest:
        raise ForbiddenError(f"{name} must be at most {highest}, which is that of the client that sets it")
    return requested
