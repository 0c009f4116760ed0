"""Uses every part of the library on a PostgreSQL behind a pooler, and reports how often each work ran.

Arguments: the address, and the number of keys. Two of these processes at the same time use the same keys.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from grantwire_idempotency import (
    AsyncInboxGuard,
    AsyncPostgresStore,
    AsyncTransactionGuard,
    FailMode,
    IdempotencyChecker,
    IdempotentConsumer,
    InboxGuard,
    Message,
    NoMetrics,
    PostgresLocks,
    PostgresStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    idempotent,
)
from grantwire_idempotency.errors import LockHeldError, RequestInProgressError

if TYPE_CHECKING:
    from collections.abc import Callable

MINUTE = timedelta(minutes=1)
# Long enough for a busy machine.
LIMITS: Any = {"timeout": MINUTE}
KINDS = ("dsn", "connection", "pool")
# The other process does the same work at the moment.
ELSEWHERE = (RequestInProgressError, LockHeldError)
runs: Counter[str] = Counter()
lock = threading.Lock()


def count(part: str, key: str) -> str:
    """Count a run of the work."""
    with lock:
        runs[f"{part}:{key}"] += 1
    return key


def user_prepares(kind: str) -> bool | None:
    """Return the argument `prepare` for a statement of the work: on a DSN the library takes care of that."""
    return None if kind == "dsn" else False


def use_own_transactions(url: str, keys: list[str]) -> None:
    """Record messages and requests in transactions of this program, which prepares no statement."""
    inbox, guard = InboxGuard(name="own", **LIMITS), TransactionGuard(**LIMITS)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for key in keys:
            identity = RequestIdentity.create("shop", "own", key, {})
            with suppress(*ELSEWHERE), connection.transaction():
                if inbox.record(connection, Message(key)):
                    count("own-message", key)
                if guard.begin(connection, identity) is None:
                    guard.finish(connection, identity, StoredResponse(200, count("own-request", key)))


def use(kind: str, source: Callable[[], Any], keys: list[str], stack: ExitStack) -> None:  # noqa: C901 - one for each part
    """Use every part on one kind of connection."""

    def open_store() -> PostgresStore:
        return stack.enter_context(closing(PostgresStore(source(), fail_mode=FailMode.CLOSED, **LIMITS)))

    guard = stack.enter_context(closing(TransactionGuard(source(), **LIMITS)))
    inbox = stack.enter_context(closing(InboxGuard(source(), name=f"inbox-{kind}", **LIMITS)))
    locks = stack.enter_context(closing(PostgresLocks(source(), **LIMITS)))
    checker = IdempotencyChecker(open_store())
    consumer = IdempotentConsumer(
        open_store(), lambda message: count(f"consumer-{kind}", message.id), NoMetrics(), name=f"consumer-{kind}"
    )

    @idempotent(open_store(), key=str, name=f"job-{kind}", metrics=NoMetrics())
    def job(key: str) -> str:
        return count(f"job-{kind}", key)

    def respond(tx: psycopg.Connection[Any], key: str) -> StoredResponse:
        tx.execute("SELECT %s::text", (key,), prepare=user_prepares(kind))
        return StoredResponse(200, count(f"guard-{kind}", key))

    def check(key: str) -> None:
        name = f"checker-{kind}-{key}"
        if not checker.is_processed(name) and checker.mark_processing(name, MINUTE):
            checker.mark_completed(name, count(f"checker-{kind}", key))

    def take_lock(key: str) -> None:
        with locks.acquire(f"{kind}-{key}", MINUTE) as held:
            held.extend(MINUTE)

    def run_guard(key: str) -> None:
        guard.run(RequestIdentity.create("shop", kind, key, {}), lambda tx: respond(tx, key))

    def run_inbox(key: str) -> None:
        inbox.run(Message(key), lambda _: count(f"inbox-{kind}", key))

    def consume(key: str) -> None:
        consumer.process(Message(key))

    for key in keys:
        for work in (job, run_guard, run_inbox, consume, check, take_lock):
            with suppress(*ELSEWHERE):
                work(key)


async def use_async(kind: str, source: Callable[[], Any], keys: list[str], stack: AsyncExitStack) -> None:
    """Use the asynchronous parts on one kind of connection."""
    store = AsyncPostgresStore(await source(), fail_mode=FailMode.CLOSED, **LIMITS)
    guard, inbox = (
        AsyncTransactionGuard(await source(), **LIMITS),
        AsyncInboxGuard(await source(), name=f"async-inbox-{kind}", **LIMITS),
    )
    for part in (store, guard, inbox):
        stack.push_async_callback(part.close)

    @idempotent(store, key=str, name=f"async-{kind}", metrics=NoMetrics())
    async def job(key: str) -> str:
        return count(f"async-job-{kind}", key)

    async def run_guard(key: str) -> None:
        async def respond(tx: psycopg.AsyncConnection[Any]) -> StoredResponse:
            await tx.execute("SELECT %s::text", (key,), prepare=user_prepares(kind))
            return StoredResponse(200, count(f"async-guard-{kind}", key))

        await guard.run(RequestIdentity.create("shop", f"async-{kind}", key, {}), respond)

    async def run_inbox(key: str) -> None:
        async def handle(_tx: Any) -> str:
            return count(f"async-inbox-{kind}", key)

        await inbox.run(Message(key), handle)

    for key in keys:
        for work in (job, run_guard, run_inbox):
            with suppress(*ELSEWHERE):
                await work(key)


async def use_all_async(url: str, keys: list[str]) -> None:
    """Use them on each kind of connection."""
    async with AsyncExitStack() as stack:

        async def open_source(kind: str) -> Any:
            if kind == "connection":
                connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
                return await stack.enter_async_context(connection)
            if kind == "pool":
                pool = AsyncConnectionPool(url, min_size=1, max_size=2, open=False)
                return await stack.enter_async_context(pool)
            return url

        for kind in KINDS:
            await use_async(kind, partial(open_source, kind), keys, stack)


def main(url: str, keys: int) -> None:
    """Use everything, and print the runs of each work."""
    names = [str(number) for number in range(keys)]
    with ExitStack() as stack:

        def open_source(kind: str) -> Any:
            if kind == "connection":
                return stack.enter_context(psycopg.connect(url, autocommit=True))
            return stack.enter_context(ConnectionPool(url, min_size=1, max_size=2)) if kind == "pool" else url

        for kind in KINDS:
            use(kind, partial(open_source, kind), names, stack)
    use_own_transactions(url, names)
    asyncio.run(use_all_async(url, names))
    print(json.dumps(runs))  # noqa: T201 - the report


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
