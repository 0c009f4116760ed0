"""C26: a PostgreSQL that does not respond ends in the fail mode, with a deadline on the client's side."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire_idempotency import (
    AsyncPostgresStore,
    AsyncTransactionGuard,
    GuardSettings,
    InboxGuard,
    Key,
    Message,
    NoMetrics,
    Outcome,
    PostgresLocks,
    PostgresStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    idempotent,
)
from grantwire_idempotency.errors import AmbiguousError, RetryableError
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["database_url"]

SHORT = timedelta(milliseconds=200)


@contextmanager
def stopped_backends(url: str) -> Iterator[None]:
    """Stop the server processes of all sessions of the database: they accept statements and never respond."""
    with psycopg.connect(url) as observer:
        backends = observer.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchall()
    assert backends
    for (pid,) in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for (pid,) in backends:
            os.kill(pid, signal.SIGCONT)


def respond(_tx: Any) -> StoredResponse:
    """Return a response."""
    return StoredResponse(200, "")


def request() -> RequestIdentity:
    """Return a request with a new key."""
    return RequestIdentity.create("shop", "POST /orders", uuid.uuid4().hex, {})


@newest_postgres
def test_backend_that_does_not_respond_is_unavailable(database_url: str) -> None:
    """C26: a check, a lock and the BEGIN of a guard are repeated once, over a new connection; others raise."""
    with (
        closing(PostgresStore(database_url, timeout=SHORT)) as store,
        closing(PostgresLocks(database_url, timeout=SHORT)) as locks,
        closing(TransactionGuard(database_url, GuardSettings(lock_wait=SHORT), timeout=SHORT)) as guard,
        closing(InboxGuard(database_url, name="inbox", timeout=SHORT, lock_wait=SHORT)) as inbox,
    ):

        @idempotent(store, key=str, name=uuid.uuid4().hex, metrics=NoMetrics())
        def job(order: str) -> str:
            return order

        repeated: list[Callable[[], object]] = [
            lambda: job(uuid.uuid4().hex),
            lambda: locks.acquire(uuid.uuid4().hex, timedelta(minutes=1)),
            lambda: guard.run(request(), respond),
            lambda: inbox.run(Message(uuid.uuid4().hex), lambda _: None),
        ]
        for call in repeated:
            call()
        with stopped_backends(database_url):
            for call in repeated:
                call()
        with stopped_backends(database_url):
            with pytest.raises(RetryableError):
                store.get_result(Key("k"))
            assert store.get_result(Key("k")) is None


@newest_postgres
def test_asynchronous_store_and_guard_have_the_same_deadline(database_url: str) -> None:
    """C26, C22: on the connection of a DSN."""

    async def main() -> None:
        store = AsyncPostgresStore(database_url, timeout=SHORT)
        guard = AsyncTransactionGuard(database_url, GuardSettings(lock_wait=SHORT), timeout=SHORT)

        async def respond_async(tx: Any) -> StoredResponse:
            return respond(tx)

        await store.get_result(Key("k"))
        await guard.run(request(), respond_async)
        with stopped_backends(database_url):
            with pytest.raises(RetryableError):
                await store.get_result(Key("k"))
            assert (await guard.run(request(), respond_async)).status_code == 200
            assert await store.get_result(Key("k")) is None
        await store.close()
        await guard.close()

    asyncio.run(main())


@newest_postgres
def test_commit_without_a_response_is_ambiguous(database_url: str) -> None:
    """C26: the server stops in the middle of the work; the outcome is unknown, and a repeat is safe."""
    settings = GuardSettings(lock_wait=SHORT)
    stopped = ExitStack()
    with closing(TransactionGuard(database_url, settings, timeout=SHORT)) as guard, stopped:

        def stop(_tx: Any) -> StoredResponse:
            stopped.enter_context(stopped_backends(database_url))
            return StoredResponse(200, "")

        with pytest.raises(AmbiguousError):
            guard.run(request(), stop)
        stopped.close()
        assert guard.run(request(), respond) == StoredResponse(200, "")


@newest_postgres
def test_work_of_a_guard_may_take_longer(database_url: str) -> None:
    """C26: the deadline is for the statements of the library alone."""
    guard = InboxGuard(database_url, name="inbox", timeout=SHORT, lock_wait=SHORT)

    def wait(tx: psycopg.Connection[Any]) -> int:
        tx.execute("SELECT pg_sleep(0.6)")
        return 5

    message = Message(uuid.uuid4().hex)
    assert guard.run(message, wait) == Outcome(5)
    assert guard.run(message, wait) == Outcome(5, replayed=True)
    guard.close()
