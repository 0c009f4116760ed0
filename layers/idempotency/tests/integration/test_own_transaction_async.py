"""C28: keys in transactions that a program with asyncio opens and commits, with psycopg and SQLAlchemy."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from grantwire_idempotency import (
    AsyncInboxGuard,
    AsyncTransactionGuard,
    GuardSettings,
    InboxGuard,
    Message,
    RequestIdentity,
    StoredResponse,
)
from grantwire_idempotency.errors import InternalError, KeyConflictError, RequestInProgressError
from layers.idempotency.tests.support.callers import sqlalchemy_url
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.fixtures import Rows

__all__ = ["database_url"]

PATIENT, SHORT = timedelta(seconds=WAIT_SECONDS), timedelta(milliseconds=50)
INBOX = AsyncInboxGuard(name="orders", lock_wait=PATIENT)
GUARD = AsyncTransactionGuard(settings=GuardSettings(lock_wait=PATIENT))
IDENTITY = RequestIdentity.create("ann", "POST /orders", "k1", {"total": 5})
RESPONSE = StoredResponse(201, "{}")


@asynccontextmanager
async def open_connection(kind: str, url: str) -> AsyncIterator[tuple[Any, AbstractAsyncContextManager[Any]]]:
    """Open a connection of that kind, and return it with its transaction."""
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            yield connection, connection.transaction()
        return
    engine = create_async_engine(sqlalchemy_url(url))
    try:
        async with engine.connect() if kind == "sqlalchemy" else AsyncSession(engine) as connection_or_session:
            yield connection_or_session, connection_or_session.begin()
    finally:
        await engine.dispose()


@pytest.fixture(params=["psycopg", "sqlalchemy", "session"])
def kind(request: pytest.FixtureRequest, rows: Rows) -> str:
    """Return a kind of connection, and forget what other tests recorded."""
    rows.execute("TRUNCATE idempotency_keys, processed_messages, guarded_transactions")
    return str(request.param)


def count(rows: Rows) -> int:
    """Return the number of keys that were committed."""
    return len(rows.execute("SELECT FROM processed_messages UNION ALL SELECT FROM idempotency_keys").fetchall())


def test_keys_are_committed_by_the_caller(kind: str, database_url: str, rows: Rows) -> None:
    """C28: a rollback forgets them; after a commit they are known."""

    async def work(*, fails: bool) -> tuple[bool, StoredResponse | None]:
        async with open_connection(kind, database_url) as (connection, block), block:
            is_new = await INBOX.record(connection, Message("m1"))
            stored = await GUARD.begin(connection, IDENTITY)
            if stored is None:
                await GUARD.finish(connection, IDENTITY, RESPONSE)
            if fails:
                raise ValueError
        return is_new, stored

    async def test() -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the one of the work
            await work(fails=True)
        assert count(rows) == 0
        assert await work(fails=False) == (True, None)
        assert await work(fails=False) == (False, StoredResponse(201, "{}", "REPLAYED"))

    asyncio.run(test())


def test_tasks_wait_for_one_another(kind: str, database_url: str, rows: Rows) -> None:
    """C28: of ten tasks, one does the work; a task that waits for too long can continue its transaction."""

    async def work() -> bool:
        async with open_connection(kind, database_url) as (connection, block), block:
            return await INBOX.record(connection, Message("m1"))

    async def give_up(connection: Any) -> None:
        inbox = AsyncInboxGuard(name="orders", lock_wait=SHORT)
        with pytest.raises(RequestInProgressError):
            await inbox.record(connection, Message("m1"))
        assert await inbox.record(connection, Message("m2"))

    async def test() -> None:
        async with open_connection(kind, database_url) as (connection, block), block:
            assert await INBOX.record(connection, Message("m1"))
            async with open_connection(kind, database_url) as (second, second_block), second_block:
                await give_up(second)
        rows.execute("DELETE FROM processed_messages WHERE message_id = 'm1'")
        assert sorted(await asyncio.gather(*(work() for _ in range(10)))) == [False] * 9 + [True]

    asyncio.run(test())
    assert count(rows) == 2


def test_mistakes_are_errors(kind: str, database_url: str, rows: Rows) -> None:
    """C28: no transaction, a failed one, a COMMIT without `finish`, and the key of another request."""

    async def test() -> None:
        async with open_connection(kind, database_url) as (connection, block), block:
            await GUARD.begin(connection, IDENTITY)
            await GUARD.finish(connection, IDENTITY, RESPONSE)
        with pytest.raises(Exception, match="`begin` needs `finish`"):
            await forget_finish()
        await use_failed_transaction()

    async def forget_finish() -> None:
        async with open_connection(kind, database_url) as (connection, block), block:
            with pytest.raises(KeyConflictError):
                await GUARD.begin(connection, IDENTITY._replace(request_hash="other"))
            await GUARD.begin(connection, IDENTITY._replace(key="k2"))
            await INBOX.record(connection, Message("m1"))

    async def use_failed_transaction() -> None:
        async with open_connection(kind, database_url) as (connection, block):
            with pytest.raises(InternalError, match="the transaction has failed"):
                await fail(connection, block)

    async def fail(connection: Any, block: Any) -> None:
        async with block:
            with pytest.raises(Exception, match="division by zero"):
                await connection.execute("SELECT 1 / 0" if kind == "psycopg" else text("SELECT 1 / 0"))
            await INBOX.record(connection, Message("m1"))

    asyncio.run(test())
    assert count(rows) == 1


@newest_postgres
def test_wrong_kind_of_connection_is_refused(database_url: str) -> None:
    """C28: a synchronous connection in a coroutine, an asynchronous one outside, and one without a transaction."""

    async def test() -> None:
        engine = create_engine(sqlalchemy_url(database_url))
        with psycopg.connect(database_url) as connection, engine.connect() as other:
            wrong: list[Any] = [connection, other, engine, database_url, None]
            for each in wrong:
                with pytest.raises(InternalError, match="needs an open transaction on a psycopg AsyncConnection"):
                    await INBOX.record(each, Message("m1"))
        engine.dispose()
        for kind in ("psycopg", "sqlalchemy", "session"):
            async with open_connection(kind, database_url) as (asynchronous, _):
                with pytest.raises(InternalError, match="needs an open transaction on a psycopg Connection"):
                    InboxGuard(name="orders").record(asynchronous, Message("m1"))
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as idle:
            with pytest.raises(InternalError, match="no transaction is open"):
                await INBOX.record(idle, Message("m1"))
        async with await psycopg.AsyncConnection.connect(database_url) as default:
            guard = AsyncInboxGuard(default, name="orders")
            with pytest.raises(InternalError, match="not in autocommit mode"):
                await guard.run(Message("m1"), lambda _: asyncio.sleep(0))
        with pytest.raises(InternalError, match="this guard has no database"):
            await INBOX.run(Message("m1"), lambda _: asyncio.sleep(0))

    asyncio.run(test())
