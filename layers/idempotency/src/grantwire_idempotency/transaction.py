"""The strongest guard: key, work and answer in one PostgreSQL transaction.

The same SQL functions as grant and revoke use, around any Python work:

    request ─▶ BEGIN + idempotency_begin ─▶ the work, on the same connection ─▶ idempotency_finish + COMMIT
               one round trip                                                   one round trip

Either all of it is there afterwards or nothing, whatever dies when. What it cannot cover is an effect outside that
database: use it for rows, and an outbox row for everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grantwire_idempotency.errors import InternalError
from grantwire_idempotency.logs import key_fingerprint, logger
from grantwire_idempotency.requests import GuardSettings, StoredResponse, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from grantwire_idempotency.database import TransactionRunner
    from grantwire_idempotency.requests import RequestIdentity

_DEFAULTS = GuardSettings()

_BEGIN = """
SELECT verdict, status_code, body
  FROM idempotency_begin(%(caller)s, %(route)s, %(key)s, %(request_hash)s, %(lock_wait_ms)s::integer)
"""

_FINISH = """
SELECT idempotency_finish(
  %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(status_code)s::integer, %(body)s, %(ttl)s)
"""


class TransactionGuard:
    """Runs work at most once in effect for each (caller, route, key), and gives every repeat the same answer."""

    def __init__(self, database: TransactionRunner, settings: GuardSettings = _DEFAULTS) -> None:
        self._database = database
        self._settings = settings

    def run(
        self, identity: RequestIdentity, work: Callable[[Connection[tuple[Any, ...]]], StoredResponse]
    ) -> StoredResponse:
        """The answer of `work`, or the one that was stored for the key before (`answer.replayed`).

        `work` gets the connection inside the transaction and must not end it; `tx.transaction()` makes a savepoint. Its
        row locks wait no longer than the key's (I8). If it raises, or answers 400 or 5xx, everything that it wrote is
        undone and nothing is stored, so that a repeat runs. Requests with the same key take turns.

        Raises KeyConflictError if the key was used for another request, RequestInProgressError if another one holds it
        for too long, AmbiguousError if the connection broke during the COMMIT: then repeat it with the same key.
        """
        parameters = {
            "caller": identity.caller,
            "route": identity.route,
            "key": identity.key,
            "request_hash": identity.request_hash,
        }
        wait = int(self._settings.lock_wait.total_seconds() * 1000)
        with self._database.transaction(_BEGIN, {**parameters, "lock_wait_ms": wait}) as tx:
            outcome, status_code, body = tx.first
            logger.debug("guarded request completed", extra={"outcome": outcome, "key": key_fingerprint(identity.key)})
            if outcome != "PROCEED":
                tx.end_unchanged()
                refuse(outcome)
                return StoredResponse(status_code, body, outcome)
            answer = work(tx.connection)
            if not isinstance(answer, StoredResponse):
                raise InternalError(f"guarded work must return a StoredResponse, not {type(answer).__name__}")
            if answer.final:
                stored = {"status_code": answer.status_code, "body": answer.body, "ttl": self._settings.ttl}
                tx.commit(_FINISH, {**parameters, **stored})
            return answer
