"""The inbox guard: the key of a message and the rows that it writes, in one PostgreSQL transaction (C18).

    message ─▶ BEGIN + inbox_begin ─▶ the work, on the same connection ─▶ inbox_finish + COMMIT

The message has its effect exactly once: after a crash at any point, either its key and its rows are committed, or
neither is. With a version or a time in its key, an older message never runs after a newer one. The keys are those of
`PostgresStore`, in `processed_messages`. In a transaction of the caller, `record` does the same in one statement (C28).

`inbox_sql.new_messages` is the same rule for many messages in one statement. The bridge of the entitlement service uses
it.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from grantwire_idempotency._internal.foundation.defaults import DEFAULT_ORDER_TTL, DEFAULT_TIMEOUT, DEFAULT_TTL
from grantwire_idempotency._internal.foundation.escaping import escape
from grantwire_idempotency._internal.foundation.logs import logger as default_logger
from grantwire_idempotency._internal.foundation.optional import optional_package
from grantwire_idempotency._internal.foundation.serializers import JsonSerializer
from grantwire_idempotency._internal.foundation.steps import drive, drive_async
from grantwire_idempotency._internal.foundation.wiring import (
    duration_rule,
    function_rule,
    logger_rule,
    name_rule,
    require,
    serializer_rule,
)
from grantwire_idempotency._internal.guards.open_guard import await_work, only_guard
from grantwire_idempotency._internal.jobs.execution import Outcome
from grantwire_idempotency._internal.jobs.work import to_key
from grantwire_idempotency._internal.keys.duplicates import by_message_id
from grantwire_idempotency._internal.keys.messages import require_message
from grantwire_idempotency._internal.stores.interface import Key, clamp_ttl, completion_ttl, validate_result
from grantwire_idempotency.errors import InternalError, RequestInProgressError

with optional_package("psycopg", used_by="InboxGuard"):
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
    from datetime import datetime

    from psycopg import AsyncConnection, Connection

    from grantwire_idempotency._internal.foundation.logs import LibraryLogger
    from grantwire_idempotency._internal.foundation.serializers import Serializer
    from grantwire_idempotency._internal.foundation.steps import Call, Steps
    from grantwire_idempotency._internal.keys.messages import Message
    from grantwire_idempotency._internal.postgres.open_transactions import AsyncOpenTransaction, OpenTransaction
    from grantwire_idempotency._internal.postgres.protocols import (
        AsyncTransaction,
        AsyncTransactionRunner,
        Transaction,
        TransactionRunner,
    )
    from grantwire_idempotency._internal.postgres.sources import AsyncConnectionPool, ConnectionPool

    UserDatabase = str | Connection[Any] | ConnectionPool | TransactionRunner
    AsyncUserDatabase = str | AsyncConnection[Any] | AsyncConnectionPool | AsyncTransactionRunner

Database = TypeVar("Database")
Runner = TypeVar("Runner")
Result = TypeVar("Result")

_BY_MESSAGE_ID = by_message_id()
_JSON = JsonSerializer()

_BEGIN = """
SELECT decision, stored_result, free_in
  FROM inbox_begin(%(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(ttl)s, %(lock_wait_ms)s::integer,
                   %(now)s)
"""

_FINISH = """
SELECT inbox_finish(%(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(result)s, %(ttl)s,
                    %(result_ttl)s, %(now)s)
"""

_RECORD = """
SELECT decision, free_in
  FROM inbox_record(%(key)s, %(token)s, %(mark)s, %(message_id)s, %(message_type)s, %(ttl)s, %(lock_wait_ms)s::integer,
                    %(now)s)
"""


class _InboxGuard(Generic[Database, Runner]):
    """What both guards have in common: their parameters, and what follows from the first statement."""

    _open: ClassVar[Callable[..., Any]]

    def __init__(  # noqa: PLR0913 - each parameter is one decision of the caller
        self,
        database: Database = NO_DATABASE,
        *,
        name: str,
        identify: Callable[..., Key | str | None] = _BY_MESSAGE_ID,
        ttl: timedelta = DEFAULT_TTL,
        order_ttl: timedelta = DEFAULT_ORDER_TTL,
        lock_wait: timedelta = timedelta(seconds=2),
        serializer: Serializer = _JSON,
        logger: LibraryLogger | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        require(
            name_rule(name),
            function_rule("identify", identify),
            duration_rule("ttl", ttl),
            duration_rule("order_ttl", order_ttl),
            duration_rule("lock_wait", lock_wait),
            duration_rule("timeout", timeout),
            serializer_rule(serializer),
            logger_rule(logger),
        )
        self._database: Runner = self._open(database, type(self).__name__, logger, timeout + lock_wait)
        self._name = name
        self._identify = identify
        self._ttl = ttl
        self._order_ttl = order_ttl
        self._lock_wait_ms = int(lock_wait.total_seconds() * 1000)
        self._serializer = serializer
        self._logger: LibraryLogger = default_logger if logger is None else logger
        self._seconds = (timeout + lock_wait).total_seconds()
        self._clock = clock

    def _parameters(self, message: Message, guard: str) -> dict[str, Any]:
        """Return the parameters of the first statement."""
        require_message(message)
        key = self._make_key(message)
        return {
            "key": key.value,
            "token": guard,
            "mark": key.mark,
            "message_id": key.message_id,
            "message_type": key.message_type,
            "ttl": completion_ttl(key, self._ttl, self._order_ttl),
            "now": None if self._clock is None else self._clock(),
            "lock_wait_ms": self._lock_wait_ms,
        }

    def _steps(self, tx: Transaction | AsyncTransaction, parameters: dict[str, Any], work: Call) -> Steps[Outcome]:
        """Return the stored outcome of the message, or do the work and commit it with the key; see `steps`."""
        decision, stored, free_in = tx.first
        if decision != "NEW":
            yield tx.end_unchanged
            return self._known(decision, stored, free_in)
        value = yield work
        if tx.has_ended:
            raise InternalError(TRANSACTION_ENDED)
        result = None if value is None else validate_result(self._dump(value))
        yield partial(tx.commit, _FINISH, {**parameters, "result": result, "result_ttl": clamp_ttl(self._ttl)})
        return Outcome(value)

    def _make_key(self, message: Message) -> Key:
        key = to_key(self._identify(message)) or Key(message.id)
        return replace(
            key,
            value=f"{escape(self._name)}:{key.value}",
            message_id=key.message_id or message.id,
            message_type=key.message_type or message.type or self._name,
        )

    def _known(self, decision: str, stored: str | None, free_in: timedelta) -> Outcome:
        if decision == "DUPLICATE":
            return Outcome(None if stored is None else self._serializer.load(stored), replayed=True)
        raise _in_progress(free_in)

    def _dump(self, value: Any) -> str:
        try:
            return self._serializer.dump(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InternalError(f"the result of the work cannot be stored, nothing is committed: {error}") from error


def _is_new(decision: str, free_in: timedelta) -> bool:
    if decision == "IN_PROGRESS":
        raise _in_progress(free_in)
    return decision == "NEW"


def _in_progress(free_in: timedelta) -> RequestInProgressError:
    seconds = free_in.total_seconds()
    return RequestInProgressError(f"the same message is in progress; retry in {seconds:.0f} s at the latest")


class InboxGuard(_InboxGuard["UserDatabase", "TransactionRunner"]):
    """Commits the rows of each message exactly once, together with the message's key.

    `database` is a DSN, a psycopg connection in autocommit mode, a pool of psycopg_pool, or an object with the methods
    of TransactionRunner. A guard that only records in transactions of its callers needs none. `identify` returns the
    key of a message: a key strategy, or a duplicate strategy such as `by_version`. The `name` is part of every key. A
    key is remembered for `ttl`, and the version or time of an entity for `order_ttl`; both must be longer than the
    queue can deliver a message again. Raises ConfigError with every invalid argument.
    """

    _open = staticmethod(transaction_runner)

    def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, PsycopgDatabase):
            self._database.close()

    def run(self, message: Message, work: Callable[[Connection[tuple[Any, ...]]], Result]) -> Outcome[Result]:
        """Do the work and commit it with the key of the message, unless the message was recorded before.

        `work` gets the connection of the transaction. If it raises, nothing is recorded and a redelivery runs. If it
        commits or rolls back, or opens another guard, the guard raises InternalError and nothing is recorded. A
        duplicate returns the stored result with `replayed`.

        Raises RequestInProgressError if another transaction has held the key for longer than `lock_wait`, or if a
        worker with a PostgresStore has claimed it. Raises AmbiguousError if the connection broke during the COMMIT:
        process the message again.
        """
        with only_guard() as guard:
            parameters = self._parameters(message, guard)
            with self._database.transaction(_BEGIN, parameters) as tx:
                return drive(self._steps(tx, parameters, partial(work, tx.connection)))

    def record(self, connection: OpenTransaction, message: Message) -> bool:
        """Record the message in the open transaction of the caller, and return whether it is new.

        If it is, write its rows in the same transaction and commit: both are committed, or neither is. A rollback, also
        to a savepoint from before the call, makes the message new again. If it is not new, the message, or a later
        version of its entity, is recorded: write nothing. No result is stored.

        `connection` is a connection of psycopg, a Connection or Session of SQLAlchemy, or `django.db.connection`.

        Raises RequestInProgressError as `run` does; the transaction can continue. Raises InternalError if no
        transaction is open, or if it is read-only or has failed. Every other error is that of the connection, such as a
        serialization failure under a stricter isolation level than READ COMMITTED.
        """
        parameters = self._parameters(message, uuid.uuid4().hex)
        return _is_new(*fetch_in_transaction(connection, _RECORD, parameters, self._seconds, self._logger))


class AsyncInboxGuard(_InboxGuard["AsyncUserDatabase", "AsyncTransactionRunner"]):
    """An `InboxGuard` for asyncio.

    `database` is a DSN, a psycopg AsyncConnection in autocommit mode, an AsyncConnectionPool of psycopg_pool, or an
    object with the methods of AsyncTransactionRunner.
    """

    _open = staticmethod(async_transaction_runner)

    async def close(self) -> None:
        """Close the connection that was opened for a DSN; the next use opens a new one."""
        if isinstance(self._database, AsyncPsycopgDatabase):
            await self._database.close()

    async def run(
        self, message: Message, work: Callable[[AsyncConnection[tuple[Any, ...]]], Awaitable[Result]]
    ) -> Outcome[Result]:
        """Do the same as `InboxGuard.run`, with a coroutine function.

        If the task is cancelled, nothing is recorded and a redelivery runs. Only a cancellation during the COMMIT may
        come too late: then the redelivery is a duplicate.
        """
        with only_guard() as guard:
            parameters = self._parameters(message, guard)
            async with self._database.transaction(_BEGIN, parameters) as tx:
                return await drive_async(self._steps(tx, parameters, partial(await_work, work, tx.connection)))

    async def record(self, connection: AsyncOpenTransaction, message: Message) -> bool:
        """Do the same as `InboxGuard.record`.

        `connection` is an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy.
        """
        parameters = self._parameters(message, uuid.uuid4().hex)
        return _is_new(*await fetch_in_transaction_async(connection, _RECORD, parameters, self._seconds, self._logger))
