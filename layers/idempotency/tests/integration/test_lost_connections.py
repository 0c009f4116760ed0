"""C16: a DSN or a pool survives the end of its connections; errors of the driver become errors of the library."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from grantwire_idempotency import (
    AsyncPostgresStore,
    AsyncRedisStore,
    Claim,
    Duplicate,
    InboxGuard,
    Key,
    Message,
    Outcome,
    PostgresLocks,
    PostgresStore,
    RedisLocks,
    RedisStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    connect_redis,
    connect_redis_async,
)
from grantwire_idempotency.errors import ConfigError, InternalError, RetryableError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.fixtures import Rows

MINUTE = timedelta(minutes=1)
KEY = Key("order:1")
NO_SERVER = "postgresql://127.0.0.1:1/app"
NO_REDIS = "redis://127.0.0.1:1"


def end_connections(rows: Rows) -> None:
    """End every other session of the database, and wait until it has ended."""
    rows.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.fixture(params=["dsn", "pool"])
def database(request: pytest.FixtureRequest, database_url: str) -> Iterator[Any]:
    """Return what a user passes: a DSN, or a pool with a single connection."""
    if request.param == "dsn":
        yield database_url
        return
    with ConnectionPool(database_url, min_size=1, max_size=1, kwargs={"autocommit": True}) as pool:
        yield pool


@newest_postgres
def test_store_reconnects(database: Any, rows: Rows) -> None:
    """C16: the statement is sent again over a new connection."""
    with closing(PostgresStore(database)) as store:
        claim = store.check(KEY, MINUTE)
        assert isinstance(claim, Claim)
        end_connections(rows)
        store.store_result(claim, "done", MINUTE)
        end_connections(rows)
        assert store.check(KEY, MINUTE) == Duplicate(KEY, "done")


@newest_postgres
def test_asynchronous_store_reconnects(database_url: str, rows: Rows) -> None:
    """C22: as the other one."""

    async def run() -> None:
        store = AsyncPostgresStore(database_url)
        claim = await store.check(KEY, MINUTE)
        assert isinstance(claim, Claim)
        end_connections(rows)
        await store.store_result(claim, "done", MINUTE)
        assert await store.check(KEY, MINUTE) == Duplicate(KEY, "done")
        await store.close()

    asyncio.run(run())


@newest_postgres
def test_guards_reconnect_before_the_work(database: Any, rows: Rows) -> None:
    """C18, C19: the work runs once, and a repeat over another connection is a replay."""
    runs: list[str] = []
    message = Message("m-1")
    identity = RequestIdentity.create("ann", "POST /orders", "k1", {"total": 5})

    def handle(_: object) -> StoredResponse:
        runs.append("request")
        return StoredResponse(201, "{}")

    with closing(InboxGuard(database, name="orders")) as inbox, closing(TransactionGuard(database)) as guard:
        for is_replayed in (False, True):
            end_connections(rows)
            assert inbox.run(message, lambda _: runs.append("message")) == Outcome(replayed=is_replayed)
            end_connections(rows)
            assert guard.run(identity, handle).replayed is is_replayed
    assert runs == ["message", "request"]


@newest_postgres
def test_connection_lost_during_the_work_records_nothing(database: Any, rows: Rows) -> None:
    """C18: the error says to retry, and the redelivery runs."""

    def lose_connection(connection: psycopg.Connection[Any]) -> None:
        end_connections(rows)
        connection.execute("SELECT 1")

    with closing(InboxGuard(database, name="orders")) as guard:
        with pytest.raises(RetryableError):
            guard.run(Message("m-1"), lose_connection)
        assert guard.run(Message("m-1"), lambda _: "done") == Outcome("done")


@newest_postgres
def test_lost_connection_of_the_user_is_an_outage(database_url: str, rows: Rows) -> None:
    """C16: the library cannot open it again."""
    with psycopg.connect(database_url) as connection:
        store = PostgresStore(connection)
        assert isinstance(store.check(KEY, MINUTE), Claim)
        end_connections(rows)
        for _ in range(2):
            with pytest.raises(RetryableError):
                store.check(KEY, MINUTE)


def test_open_transaction_of_the_user_is_refused(database_url: str) -> None:
    """C16, C19: its end would decide about the key, and a guard would commit the user's own rows."""
    calls: list[Callable[[Any], object]] = [
        lambda connection: PostgresStore(connection).check(KEY, MINUTE),
        lambda connection: InboxGuard(connection, name="orders").run(Message("m-1"), str),
    ]
    for call in calls:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("BEGIN")
            with pytest.raises(InternalError, match="is in a transaction"):
                call(connection)
            connection.rollback()
            call(connection)


def test_invalid_dsn_is_not_shown() -> None:
    """C16: it may contain a password."""
    with pytest.raises(ConfigError, match="not a valid connection string") as caught:
        PostgresStore("postgresql://ann:secret@[broken/app")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.timeout(30)
def test_server_that_does_not_answer_is_an_outage() -> None:
    """C16: a DSN without timeouts gets some; no call waits until the operating system gives up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/app"
        with pytest.raises(RetryableError):
            PostgresStore(dsn).check(KEY, MINUTE)


PARTS: dict[str, Callable[[Any], object]] = {
    "PostgresStore": lambda logger: PostgresStore(NO_SERVER, logger=logger).check(KEY, MINUTE),
    "PostgresLocks": lambda logger: PostgresLocks(NO_SERVER, logger=logger).acquire("job", MINUTE),
    "InboxGuard": lambda logger: InboxGuard(NO_SERVER, name="orders", logger=logger).run(Message("m-1"), str),
    "TransactionGuard": lambda logger: TransactionGuard(NO_SERVER, logger=logger).run(
        RequestIdentity.create("ann", "POST /orders", "k1", {}), lambda _: StoredResponse(201, "")
    ),
    "AsyncPostgresStore": lambda logger: asyncio.run(AsyncPostgresStore(NO_SERVER, logger=logger).check(KEY, MINUTE)),
    "RedisStore": lambda logger: RedisStore(connect_redis(NO_REDIS), logger=logger).check(KEY, MINUTE),
    "RedisLocks": lambda logger: RedisLocks(connect_redis(NO_REDIS), logger=logger).acquire("job", MINUTE),
    "AsyncRedisStore": lambda logger: asyncio.run(
        AsyncRedisStore(connect_redis_async(NO_REDIS), logger=logger).check(KEY, MINUTE)
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_outage_is_logged_to_the_logger_of_the_user(part: str, caplog: pytest.LogCaptureFixture) -> None:
    """C16: and to no other one."""
    with pytest.raises(RetryableError, match="temporarily unavailable"):
        PARTS[part](logging.getLogger("own"))
    message = "redis unavailable" if "Redis" in part else "postgres unavailable"
    assert {(record.name, record.getMessage()) for record in caplog.records} == {("own", message)}


def test_unreachable_server_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """C16: for stores, locks and guards; the password is not logged."""
    dsn = NO_SERVER.replace("//", "//ann:secret@")
    calls = (
        lambda: PostgresStore(dsn).check(KEY, MINUTE),
        lambda: PostgresLocks(dsn).acquire("job", MINUTE),
        lambda: InboxGuard(dsn, name="orders").run(Message("m-1"), lambda _: None),
        lambda: asyncio.run(AsyncPostgresStore(dsn).check(KEY, MINUTE)),
    )
    for call in calls:
        with pytest.raises(RetryableError, match="temporarily unavailable"):
            call()
    assert {record.getMessage() for record in caplog.records} == {"postgres unavailable"}
    assert "secret" not in caplog.text + str([vars(record) for record in caplog.records])


@newest_postgres
def test_missing_schema_is_an_error_that_names_the_command(database: Any, rows: Rows) -> None:
    """C15: a connection that is not in autocommit mode is usable afterwards."""
    rows.execute("ALTER TABLE processed_messages RENAME TO hidden")
    with closing(PostgresStore(database)) as store, pytest.raises(ConfigError, match="is the schema installed"):
        store.check(KEY, MINUTE)
    with psycopg.connect(rows.info.dsn, password=rows.info.password) as connection:
        own = PostgresStore(connection)
        with pytest.raises(ConfigError, match="python -m grantwire_idempotency schema"):
            own.check(KEY, MINUTE)
        rows.execute("ALTER TABLE hidden RENAME TO processed_messages")
        assert isinstance(own.check(KEY, MINUTE), Claim)
