"""The transaction guard: key, work and stored response in one PostgreSQL transaction.

It calls the SQL functions that grant and revoke use, around any Python code:

    request ─▶ BEGIN + request_guard_begin ─▶ the work, on the same connection ─▶ request_guard_finish + COMMIT

After a crash at any point, either everything is committed or nothing is. The guard does not cover effects outside the
database: write an outbox row for those. In a transaction of the caller, `begin` and `finish` send the two statements
(C28).
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_TIMEOUT
from grantwire_idempotency._internal.foundation.logs import key_fingerprint
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.wiring import duration_rule, logger_rule, require
from grantwire_idempotency._internal.guards.open_guard import await_work, only_guard
from grantwire_idempotency._internal.guards.requests import (
    GuardSettings,
    StoredResponse,
    raise_for_outcome,
    require_identity,
    require_response,
)
from grantwire_idempotency.errors import InternalError

with optional_package("psycopg", used_by="TransactionGuard"):
    from grantwire_idempotency._internal.postgres.databases import AsyncPsycopgDatabase, PsycopgDatabase
    from grantwire_idempotency._internal.postgres.open_transactions import (
        fetch_in_transaction,
        fetch_in_transaction_async,
    )
    from grantwire_idempotency._internal.postgres.runners import (
        NO_DATABASE,
        async_transaction_runner,
        transaction_runner,
    )
    from grantwire_idempotency._internal.postgres.transactions import TRANSACTION_ENDED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from psycopg import AsyncConnection, Connection

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.guards.requests import RequestIdentity
    from grantwire_idempotency._internal.postgres.open_transactions import AsyncOpenTransaction, OpenTransaction
    from grantwire_idempotency._internal.postgres.protocols import (
        AsyncTransaction,
        AsyncTransactionRunner,
        Transaction,
        TransactionRunner,
    )
    from grantwire_idempotency._internal.postgres.sources import AsyncConnectionPool, ConnectionPool

_DEFAULTS = GuardSettings()

_BEGIN = """
SELECT decision, status_code, body
  FROM request_guard_begin(
         %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(lock_wait_ms)s::integer, %(guard)s)
"""

_JOIN = """
SELECT decision, status_code, body
  FROM request_guard_join(
         %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(lock_wait_ms)s::integer, %(guard)s)
"""

_FINISH = """
SELECT request_guard_finish(
  %(caller)s, %(route)s, %(key)s, %(request_hash)s, %(status_code)s::integer, %(body)s, %(ttl)s, %(guard)s)
"""


class _Engine:
    """What both guards do between the first and the last statement of the transaction; see `steps`."""

    def __init__(self, settings: GuardSettings, logger: LibraryLogger | None, timeout: timedelta) -> None:
        is_settings = isinstance(settings, GuardSettings)
        require((is_settings, f"settings must be a GuardSettings, not a {type(settings).__name__}"))
        require(
            duration_rule("ttl", settings.ttl),
            duration_rule("lock_wait", settings.lock_wait),
            duration_rule("timeout", timeout),
            logger_rule(logger),
        )
        self._settings = settings
        self.seconds = (timeout + settings.lock_wait).total_seconds()
        self.logger: LibraryLogger = default_logger if logger is None else logger

    def parameters(self, identity: RequestIdentity, guard: str) -> dict[str, Any]:
        """Return the parameters of the first statement."""
        require_identity(identity)
        return {
            "caller": identity.caller,
            "route": identity.route,
            "key": identity.key,
            "request_hash": identity.request_hash,
            "guard": guard,
            "lock_wait_ms": int(self._settings.lock_wait.total_seconds() * 1000),
        }

    def run(self, tx: Transaction | AsyncTransaction, parameters: dict[str, Any], work: Call) -> Steps[StoredResponse]:
        """Return the stored response of the key, or do the work and store its response."""
        outcome, *_ = tx.first
        if outcome != "PROCEED":
            yield tx.end_unchanged
        stored = self.interpret(parameters, *tx.first)
        if stored is not None:
            return stored
        result = yield work
        if tx.has_ended:
            raise InternalError(TRANSACTION_ENDED)
        response = require_response(result)
        if response.is_final:
            yield partial(tx.commit, _FINISH, self.final_parameters(parameters, response))
        return response

    def interpret(self, parameters: dict[str, Any], outcome: str, status_code: int, body: str) -> StoredResponse | None:
        """Return the stored response of the key, or None if the work must be done."""
        logger = self.logger
        logger.debug("guarded request completed", extra={"outcome": outcome, "key": key_fingerprint(parameters["key"])})
        raise_for_outcome(outcome)
        return None if outcome == "PROCEED" else StoredResponse(status_code, body, outcome)

    def final_parameters(self, parameters: dict[str, Any], response: StoredResponse) -> dict[str, Any]:
        """Return the parameters of the last statement."""
        stored = {"status_code": response.status_code, "body": response.body, "ttl": self._settings.ttl}
        return {**parameters, **stored}

    def joined_parameters(self, identity: RequestIdentity) -> dict[str, Any]:
        """Return the parameters of a request in a transaction of the caller.

        The id of its guard is made from the request, so that `finish` finds the guard of `begin`, and no other one.
        """
        require_identity(identity)
        return self.parameters(identity, hashlib.sha256(json.dumps(identity).encode()).hexdigest())

    def joined_final_parameters(self, identity: RequestIdentity, response: StoredResponse) -> dict[str, Any]:
        """Return the parameters of the last statement in a transaction of the caller."""
        if not require_response(response).is_final:
            raise InternalError(
                f"a response with status {response.status_code} is never stored: roll the transaction back instead, so"
                " that a repeat runs"
            )
        return self.final_parameters(self.joined_parameters(identity), response)


class TransactionGuard:
    """Commits work at most once for each (caller, route, key) and returns the same response to every repeat.

    `database` is a DSN, a psycopg connection in autocommit mode, a pool of psycopg_pool, or an object with the methods
    of TransactionRunner. Requests run one after the other on a single connection: pass a pool if they should not. A
    guard that only works in the caller's transactions needs none.
    """

    def __init__(
        self,
        database: str | Connection[Any] | ConnectionPool | TransactionRunner = NO_DATABASE,
        settings: GuardSettings = _DEFAULTS,
        *,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._engine = _Engine(settings, logger, timeout)
        self._database = transaction_runner(database, "TransactionGuard", logger, timeout + settings.lock_wait)

    def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, PsycopgDatabase):
            self._database.close()

    def run(
        self, identity: RequestIdentity, work: Callable[[Connection[tuple[Any, ...]]], StoredResponse]
    ) -> StoredResponse:
        """Return the response of `work`, or the stored response of the key (its `replayed` is true then).

        `work` gets the connection of the transaction; `tx.transaction()` makes a savepoint. If the work commits or
        rolls back, or opens another guard, the guard raises InternalError and nothing is stored. The lock timeout of
        the key also limits the waits for row locks (I8). If `work` raises, or returns 400 or 5xx, its changes are
        rolled back and nothing is stored, so that a repeat runs. Every other response, also a redirect, is stored and
        committed. Requests with the same key run one after the other.

        Raises KeyConflictError if the key was used for another request, and RequestInProgressError if another request
        holds the key for longer than `lock_wait`. Raises AmbiguousError if the connection broke during the COMMIT:
        repeat the request with the same key.
        """
        with only_guard() as guard:
            parameters = self._engine.parameters(identity, guard)
            with self._database.transaction(_BEGIN, parameters) as tx:
                return drive(self._engine.run(tx, parameters, partial(work, tx.connection)))

    def begin(self, connection: OpenTransaction, identity: RequestIdentity) -> StoredResponse | None:
        """Begin the request in the open transaction of the caller; return its stored response, or None if it is new.

        If it is new, do the work in the same transaction, call `finish` and commit: all is committed, or nothing is. A
        COMMIT without `finish` fails, and everything is rolled back. For a response that must not be stored, roll back.

        `connection` is a connection of psycopg, a Connection or Session of SQLAlchemy, or `django.db.connection`.

        Raises KeyConflictError and RequestInProgressError as `run` does; the transaction can continue. Raises
        InternalError if no transaction is open, if it is read-only or has failed, and if another request is begun in it
        and not finished. Every other error is that of the connection, such as a serialization failure under a stricter
        isolation level than READ COMMITTED.
        """
        engine, parameters = self._engine, self._engine.joined_parameters(identity)
        row = fetch_in_transaction(connection, _JOIN, parameters, engine.seconds, engine.logger)
        return engine.interpret(parameters, *row)

    def finish(self, connection: OpenTransaction, identity: RequestIdentity, response: StoredResponse) -> None:
        """Store the response of the request that `begin` began in this transaction; the caller commits.

        Raises InternalError if `begin` did not begin this request in this transaction, and for a response with status
        400 or 5xx, which is never stored.
        """
        engine, parameters = self._engine, self._engine.joined_final_parameters(identity, response)
        fetch_in_transaction(connection, _FINISH, parameters, engine.seconds, engine.logger)


class AsyncTransactionGuard:
    """A `TransactionGuard` for asyncio.

    `database` is a DSN, a psycopg AsyncConnection in autocommit mode, an AsyncConnectionPool of psycopg_pool, or an
    object with the methods of AsyncTransactionRunner. Requests run one after the other on a single connection: pass a
    pool if they should not.
    """

    def __init__(
        self,
        database: str | AsyncConnection[Any] | AsyncConnectionPool | AsyncTransactionRunner = NO_DATABASE,
        settings: GuardSettings = _DEFAULTS,
        *,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._engine = _Engine(settings, logger, timeout)
        self._database = async_transaction_runner(
            database, "AsyncTransactionGuard", logger, timeout + settings.lock_wait
        )

    async def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, AsyncPsycopgDatabase):
            await self._database.close()

    async def run(
        self, identity: RequestIdentity, work: Callable[[AsyncConnection[tuple[Any, ...]]], Awaitable[StoredResponse]]
    ) -> StoredResponse:
        """Do the same as `TransactionGuard.run`, with a coroutine function.

        If the task is cancelled, the transaction is rolled back. Only a cancellation during the COMMIT may come too
        late: repeat the request with the same key.
        """
        with only_guard() as guard:
            parameters = self._engine.parameters(identity, guard)
            async with self._database.transaction(_BEGIN, parameters) as tx:
                return await drive_async(self._engine.run(tx, parameters, partial(await_work, work, tx.connection)))

    async def begin(self, connection: AsyncOpenTransaction, identity: RequestIdentity) -> StoredResponse | None:
        """Do the same as `TransactionGuard.begin`.

        `connection` is an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy.
        """
        engine, parameters = self._engine, self._engine.joined_parameters(identity)
        row = await fetch_in_transaction_async(connection, _JOIN, parameters, engine.seconds, engine.logger)
        return engine.interpret(parameters, *row)

    async def finish(
        self, connection: AsyncOpenTransaction, identity: RequestIdentity, response: StoredResponse
    ) -> None:
        """Do the same as `TransactionGuard.finish`."""
        engine, parameters = self._engine, self._engine.joined_final_parameters(identity, response)
        await fetch_in_transaction_async(connection, _FINISH, parameters, engine.seconds, engine.logger)
