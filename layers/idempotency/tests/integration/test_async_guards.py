"""C18, C19, C22: the guards for asyncio commit the same way, and a cancelled task leaves nothing half done."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from grantwire_idempotency import (
    AsyncInboxGuard,
    AsyncTransactionGuard,
    Message,
    Outcome,
    RequestIdentity,
    StoredResponse,
    by_version,
    entity_key,
)
from grantwire_idempotency.errors import AmbiguousError, ConfigError, InternalError, KeyConflictError, RetryableError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.fixtures import Rows

    Connection = psycopg.AsyncConnection[tuple[Any, ...]]

IDENTITY = RequestIdentity.create("shop", "POST /orders", "k1", {"total": 5})
# A cancellation every 0.1 ms meets each step of a transaction, which takes a few milliseconds.
CANCELLATIONS = 150
SECONDS_BETWEEN_CANCELLATIONS = 0.0001


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """Create a table for the effects."""
    rows.execute("CREATE TABLE orders (version int)")
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    return rows


@pytest.fixture(params=["dsn", "connection", "dict-rows", "pool"])
def with_database(request: pytest.FixtureRequest, database_url: str) -> Callable[[Any], None]:
    """Return a function that runs a test in its own event loop with what a user passes to a guard."""

    @asynccontextmanager
    async def open_database() -> AsyncIterator[Any]:
        match request.param:
            case "dsn":
                yield database_url
            case "pool":
                async with AsyncConnectionPool(database_url, min_size=1, max_size=4, open=False) as pool:
                    yield pool
            case kind:
                options: dict[str, Any] = {"autocommit": True}
                if kind == "dict-rows":
                    options["row_factory"] = dict_row
                async with await psycopg.AsyncConnection.connect(database_url, **options) as connection:
                    yield connection

    def run(test: Callable[[Any], Awaitable[None]]) -> None:
        async def main() -> None:
            async with open_database() as database:
                await test(database)

        asyncio.run(main())

    return run


async def insert(tx: Connection, version: int = 1, status: int = 201) -> StoredResponse:
    """Write a row."""
    await tx.execute("INSERT INTO orders VALUES (%s)", (version,))
    return StoredResponse(status, "{}")


def versions(rows: Rows) -> list[int]:
    """Return the versions that were written."""
    return [row["version"] for row in rows.execute("SELECT version FROM orders ORDER BY version").fetchall()]


def count(rows: Rows, table: str) -> int:
    """Return the number of rows of a table."""
    return len(rows.execute(f"SELECT FROM {table}").fetchall())


def end_connections(rows: Rows) -> None:
    """End every other session of the database, and wait until it has ended."""
    rows.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_request_is_committed_once(with_database: Callable[[Any], None], orders: Rows) -> None:
    """C19, C22: a repeat gets the stored response; another request with the key is a conflict."""

    async def test(database: Any) -> None:
        guard = AsyncTransactionGuard(database)
        assert await guard.run(IDENTITY, insert) == StoredResponse(201, "{}")
        assert await guard.run(IDENTITY, insert) == StoredResponse(201, "{}", "REPLAYED")
        with pytest.raises(KeyConflictError):
            await guard.run(RequestIdentity.create("shop", "POST /orders", "k1", {"total": 6}), insert)
        await guard.close()

    with_database(test)
    assert versions(orders) == [1]
    assert count(orders, "guarded_transactions") == 0


def test_message_is_committed_once_and_in_order(with_database: Callable[[Any], None], orders: Rows) -> None:
    """C18, C22: an older version never runs after a newer one."""

    async def write(tx: Connection, version: int) -> int:
        await insert(tx, version)
        return version

    async def test(database: Any) -> None:
        guard = AsyncInboxGuard(database, name="orders", identify=by_version(entity_key("order", "id"), "version"))
        for version, expected in ((2, Outcome(2)), (1, Outcome(2, replayed=True)), (3, Outcome(3))):
            message = Message(f"m{version}", "order", json.dumps({"id": "o1", "version": version}))
            assert await guard.run(message, partial(write, version=version)) == expected
        await guard.close()

    with_database(test)
    assert versions(orders) == [2, 3]


async def commit_method(tx: Connection) -> None:
    """Commit with the method."""
    await tx.commit()


async def commit_statement(tx: Connection) -> None:
    """Commit with a statement."""
    await tx.execute("COMMIT")


async def roll_back_method(tx: Connection) -> None:
    """Roll back with the method."""
    await tx.rollback()


async def commit_and_hide(tx: Connection) -> None:
    """Commit and ignore the error."""
    with suppress(psycopg.Error):
        await tx.commit()


@pytest.mark.parametrize("end", [commit_method, commit_statement, roll_back_method, commit_and_hide])
@pytest.mark.parametrize("later", [True, False], ids=["later-statement", "last"])
@newest_postgres
def test_ending_the_transaction_is_an_error_and_leaves_nothing(
    with_database: Callable[[Any], None], orders: Rows, end: Callable[[Connection], Awaitable[None]], later: bool
) -> None:
    """C19, C22: neither the rows before it nor those after it are committed, and the key can be used again."""

    async def work(tx: Connection) -> StoredResponse:
        response = await insert(tx)
        await end(tx)
        return await insert(tx) if later else response

    async def test(database: Any) -> None:
        guard = AsyncTransactionGuard(database)
        with pytest.raises(InternalError, match=r"must not commit|has ended the transaction"):
            await guard.run(IDENTITY, work)
        assert versions(orders) == []
        assert not (await guard.run(IDENTITY, insert)).replayed
        await guard.close()

    with_database(test)
    assert versions(orders) == [1]


@newest_postgres
def test_copy_after_the_transaction_has_ended_is_an_error(database_url: str, orders: Rows) -> None:
    """C19, C22: PostgreSQL would commit it alone; inside the transaction it is committed with the response."""

    async def copy_row(tx: Connection) -> StoredResponse:
        async with tx.cursor().copy("COPY orders FROM STDIN") as copy:
            await copy.write_row((1,))
        return StoredResponse(201, "{}")

    async def copy_after_end(tx: Connection) -> StoredResponse:
        await tx.rollback()
        return await copy_row(tx)

    async def main() -> None:
        guard = AsyncTransactionGuard(database_url)
        with pytest.raises(InternalError, match="has ended the transaction"):
            await guard.run(IDENTITY, copy_after_end)
        assert versions(orders) == []
        await guard.run(IDENTITY, copy_row)
        await guard.close()

    asyncio.run(main())
    assert versions(orders) == [1]


@newest_postgres
def test_nested_guard_is_an_error_but_a_later_one_is_not(database_url: str, orders: Rows) -> None:
    """C19, C22: a task that the work started may use a guard when the work has ended, although it saw the first one."""
    inner = RequestIdentity.create("shop", "POST /payments", "k1", {})

    async def main() -> None:
        guard, may_start = AsyncTransactionGuard(database_url), asyncio.Event()
        tasks: list[asyncio.Task[StoredResponse]] = []

        async def nest(tx: Connection) -> StoredResponse:
            await insert(tx)
            return await guard.run(inner, insert)

        async def run_later() -> StoredResponse:
            await may_start.wait()
            return await guard.run(inner, partial(insert, version=2))

        async def start_task(tx: Connection) -> StoredResponse:
            tasks.append(asyncio.create_task(run_later()))
            return await insert(tx)

        with pytest.raises(InternalError, match="guards cannot be nested"):
            await guard.run(IDENTITY, nest)
        assert versions(orders) == []
        await guard.run(IDENTITY, start_task)
        may_start.set()
        assert (await tasks[0]).status_code == 201
        await guard.close()

    asyncio.run(main())
    assert versions(orders) == [1, 2]


@newest_postgres
def test_plain_function_is_refused_and_leaves_nothing(database_url: str, orders: Rows) -> None:
    """C22: its result is not awaitable, and its statements would never be awaited."""

    async def main() -> None:
        guard, inbox = AsyncTransactionGuard(database_url), AsyncInboxGuard(database_url, name="orders")
        with pytest.raises(InternalError, match="must be a coroutine function"):
            await guard.run(IDENTITY, lambda _: StoredResponse(201, ""))  # type: ignore[arg-type, return-value]
        with pytest.raises(InternalError, match="must be a coroutine function"):
            await inbox.run(Message("m-1"), lambda _: "done")  # type: ignore[arg-type, return-value]
        await guard.close()
        await inbox.close()

    asyncio.run(main())
    assert count(orders, "idempotency_keys") == count(orders, "processed_messages") == 0


def test_synchronous_connection_is_refused(database_url: str) -> None:
    """C22: the error names what the guard requires."""
    with psycopg.connect(database_url) as connection:
        for create in (AsyncTransactionGuard, partial(AsyncInboxGuard, name="orders")):
            with pytest.raises(ConfigError, match="requires a DSN, a psycopg AsyncConnection"):
                create(connection)  # type: ignore[arg-type]


@newest_postgres
def test_concurrent_tasks_with_one_key_run_the_work_once(with_database: Callable[[Any], None], orders: Rows) -> None:
    """I5, C22: the others wait and get the stored response, over one connection or several."""

    async def test(database: Any) -> None:
        guard = AsyncTransactionGuard(database)
        responses = await asyncio.gather(*(guard.run(IDENTITY, insert) for _ in range(12)))
        assert sum(not response.replayed for response in responses) == 1
        await guard.close()

    with_database(test)
    assert versions(orders) == [1]


@newest_postgres
def test_cancelled_task_leaves_all_or_nothing(with_database: Callable[[Any], None], orders: Rows) -> None:
    """C18, C22: at any point of the transaction; the guard stays usable, and the repeat ends with one row each."""

    async def test(database: Any) -> None:
        guard = AsyncInboxGuard(database, name="orders")
        for version in range(CANCELLATIONS):
            task = asyncio.create_task(guard.run(Message(f"m{version}"), partial(write_twice, version=version)))
            await asyncio.sleep(version * SECONDS_BETWEEN_CANCELLATIONS)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await guard.run(Message(f"m{version}"), partial(write_twice, version=version))
        await guard.close()

    async def write_twice(tx: Connection, version: int) -> None:
        await insert(tx, version)
        await asyncio.sleep(0.001)
        await insert(tx, version)

    with_database(test)
    assert versions(orders) == sorted([*range(CANCELLATIONS)] * 2)


@newest_postgres
def test_guards_reconnect_before_the_work(database_url: str, orders: Rows) -> None:
    """C16, C22: the work runs once, and a repeat over another connection is a replay."""

    async def main() -> None:
        guard = AsyncTransactionGuard(database_url)
        for is_replayed in (False, True):
            assert (await guard.run(IDENTITY, insert)).replayed is is_replayed
            end_connections(orders)
        await guard.close()

    asyncio.run(main())
    assert versions(orders) == [1]


@newest_postgres
def test_connection_lost_in_the_work_is_an_outage(database_url: str, orders: Rows) -> None:
    """C18, C22: nothing is recorded. If it is lost before the COMMIT, the error says that the outcome is unknown."""

    async def lose(tx: Connection, *, use: bool) -> None:
        await insert(tx)
        end_connections(orders)
        if use:
            await insert(tx)

    async def main() -> None:
        guard = AsyncInboxGuard(database_url, name="orders")
        with pytest.raises(RetryableError):
            await guard.run(Message("m-1"), partial(lose, use=True))
        with pytest.raises(AmbiguousError):
            await guard.run(Message("m-1"), partial(lose, use=False))
        assert not (await guard.run(Message("m-1"), insert_only)).replayed
        await guard.close()

    async def insert_only(tx: Connection) -> None:
        await insert(tx)

    asyncio.run(main())
    assert versions(orders) == [1]
