"""The transaction guard: key, work and stored response in one PostgreSQL transaction.

It calls the SQL functions that grant and revoke use, around any Python code:

    request ─▶ BEGIN + idempotency_begin ─▶ the work, on the same connection ─▶ idempotency_finish + COMMIT
               one round trip                                                   one round trip

After a crash at any point, either everything is committed or nothing is. The guard does not cover effects outside the
database: write an outbox row for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import InternalError
from grantwire_idempotency.logs import key_fingerprint, logger
from grantwire_idempotency.requests import GuardSettings, StoredResponse, raise_for_outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from grantwire_idempotency.database import TransactionRunner
    from grantwire_idempotency.requests import RequestIdentity

_DEFAULTS = GuardSettings()

_BEGIN = """
SELECT decision, status_code, body
  FROM idempotency_begin(%(caller)s, %(route)s, %(key)s, %(request_hash)s, %(lock_wait_ms)s::integer)
"""

_FINISH = """
SELECT idempotency_finish(
  %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(status_code)s::integer, %(body)s, %(ttl)s)
"""


class TransactionGuard:
    """Commits work at most once for each (caller, route, key) and returns the same response to every repeat."""

    def __init__(self, database: TransactionRunner, settings: GuardSettings = _DEFAULTS) -> None:
        self._database = database
        self._settings = settings

    def run(
        self, identity: RequestIdentity, work: Callable[[Connection[tuple[Any, ...]]], StoredResponse]
    ) -> StoredResponse:
        """Return the response of `work`, or the stored response of the key (its `replayed` is true then).

        `work` gets the connection of the transaction and must not end the transaction; `tx.transaction()` makes a
        savepoint. The lock timeout of the key also limits the waits for row locks (I8). If `work` raises, or returns
        400 or 5xx, its changes are rolled back and nothing is stored, so that a repeat runs. Requests with the same key
        run one after the other.

        Raises KeyConflictError if the key was used for another request, and RequestInProgressError if another request
        holds the key for longer than `lock_wait`. Raises AmbiguousError if the connection broke during the COMMIT:
        repeat the request with the same key.
        """
        parameters = {
            "caller": identity.caller,
            "route": identity.route,
            "key": identity.key,
            "request_hash": identity.request_hash,
        }
        lock_wait_ms = int(self._settings.lock_wait.total_seconds() * 1000)
        with self._database.transaction(_BEGIN, {**parameters, "lock_wait_ms": lock_wait_ms}) as tx:
            outcome, status_code, body = tx.first
            logger.debug("guarded request completed", extra={"outcome": outcome, "key": key_fingerprint(identity.key)})
            if outcome != "PROCEED":
                tx.end_unchanged()
                raise_for_outcome(outcome)
                return StoredResponse(status_code, body, outcome)
            response = work(tx.connection)
            if not isinstance(response, StoredResponse):
                raise InternalError(f"guarded work must return a StoredResponse, not {type(response).__name__}")
            if response.is_final:
                stored = {"status_code": response.status_code, "body": response.body, "ttl": self._settings.ttl}
                tx.commit(_FINISH, {**parameters, **stored})
            return response
