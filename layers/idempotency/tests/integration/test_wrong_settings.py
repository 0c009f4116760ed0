"""C30: a wrong database, role or schema is a mistake of the configuration and no outage: nothing runs because of it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from grantwire_idempotency import (
    AsyncPostgresStore,
    AsyncRedisStore,
    FailMode,
    IdempotentConsumer,
    InboxGuard,
    Key,
    MemoryStore,
    Message,
    NoMetrics,
    PostgresLocks,
    PostgresStore,
    RedisLocks,
    RedisStore,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    connect_redis,
    connect_redis_async,
    idempotent,
)
from grantwire_idempotency.errors import ConfigError, InternalError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire_idempotency import Store
    from tests.support.servers import Databases
    from tests.support.valkey import ValkeyServer

KEY = Key("order:1")
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def empty(databases: Databases) -> Iterator[str]:
    """Return the address of a database without a schema."""
    url = databases.empty()
    yield url
    databases.drop(url)


@pytest.fixture(scope="module")
def stranger(databases: Databases) -> Iterator[str]:
    """Return the address of a database with the schema, for a role that may connect and nothing else."""
    url = databases.url_for_owner(databases.migrated())
    role, password = sql.Identifier(f"stranger_{uuid.uuid4().hex[:8]}"), uuid.uuid4().hex
    database = sql.Identifier(urlsplit(url).path.lstrip("/"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, role))
        yield change(url, login=f"{role.as_string()[1:-1]}:{password}")
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM {}").format(database, role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))
    databases.drop(url)


@pytest.fixture(params=["no such database", "wrong password", "no such role", "no schema", "no privileges"])
def wrong(request: pytest.FixtureRequest, empty: str) -> tuple[str, str]:
    """Return a wrong address, and the reason that every error must give."""
    login = urlsplit(empty).netloc.rpartition("@")[0]
    match request.param:
        case "no such database":
            return change(empty, database="nowhere"), 'database "nowhere" does not exist'
        case "wrong password":
            return change(empty, login=f"{login.partition(':')[0]}:wrong"), "password authentication failed for user"
        case "no such role":
            return change(empty, login="nobody:wrong"), 'authentication failed for user "nobody"'
        case "no schema":
            return empty, "does not exist .*is the schema installed.*Run `python -m grantwire_idempotency schema`"
    return request.getfixturevalue("stranger"), "permission denied .*may the role use it"


def change(url: str, *, login: str | None = None, database: str | None = None) -> str:
    """Return the address with another login or database."""
    parts = urlsplit(url)
    own, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login or own}@{host}", path=f"/{database}" if database else parts.path))


def run_open(store: Store) -> list[str]:
    """Call a job in fail mode OPEN and return what it did."""
    done: list[str] = []

    @idempotent(store, key=str, name="job", fail_mode=FailMode.OPEN, metrics=NoMetrics())
    def job(order: str) -> None:
        done.append(order)

    job("o-1")
    return done


async def run_open_async(store: AsyncPostgresStore) -> list[str]:
    """Await a job in fail mode OPEN and return what it did."""
    done: list[str] = []

    @idempotent(store, key=str, name="job", fail_mode=FailMode.OPEN, metrics=NoMetrics())
    async def job(order: str) -> None:
        done.append(order)

    try:
        await job("o-1")
    finally:
        await store.close()
    return done


@newest_postgres
def test_open_does_not_run_because_of_a_wrong_setting(wrong: tuple[str, str]) -> None:
    """C6, C30: with and without asyncio; the reason is in the error."""
    dsn, reason = wrong
    with closing(PostgresStore(dsn)) as store, pytest.raises(ConfigError, match=reason) as raised:
        run_open(store)
    assert ":wrong" not in str(raised.value)
    with pytest.raises(ConfigError, match=reason) as raised:
        asyncio.run(run_open_async(AsyncPostgresStore(dsn)))
    assert ":wrong" not in str(raised.value)


@newest_postgres
def test_pool_says_why_it_has_no_connection(wrong: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """C23, C30: psycopg_pool itself only says that it has waited."""
    dsn, reason = wrong
    pool = ConnectionPool(dsn, min_size=0, max_size=1, timeout=0.2, open=True)
    with pool, pytest.raises(ConfigError, match=reason):
        run_open(PostgresStore(pool))

    async def run() -> None:
        async with AsyncConnectionPool(dsn, min_size=0, max_size=1, timeout=0.2, open=False) as own:
            with pytest.raises(ConfigError, match=reason):
                await AsyncPostgresStore(own).check(KEY, MINUTE)

    asyncio.run(run())
    assert "postgres unavailable" not in caplog.text


@newest_postgres
def test_locks_and_guards_name_the_wrong_setting(wrong: tuple[str, str]) -> None:
    """C30: no work of theirs runs."""
    dsn, reason = wrong
    identity = RequestIdentity.create("ann", "POST /orders", "k-1", {})
    with closing(PostgresLocks(dsn)) as locks, pytest.raises(ConfigError, match=reason):
        locks.acquire("job", MINUTE)
    with closing(InboxGuard(dsn, name="orders")) as inbox, pytest.raises(ConfigError, match=reason):
        inbox.run(Message("m-1"), lambda _: pytest.fail("it ran"))
    with closing(TransactionGuard(dsn)) as guard, pytest.raises(ConfigError, match=reason):
        guard.run(identity, lambda _: pytest.fail("it ran"))


@newest_postgres
def test_consumer_leaves_its_messages_in_the_queue(wrong: tuple[str, str]) -> None:
    """C30: none is lost, and none is a dead letter, because the message is not the cause."""
    with closing(PostgresStore(wrong[0])) as store:
        consumer = IdempotentConsumer(
            store, print, NoMetrics(), name="c", dead_letter=lambda *_: pytest.fail("it was taken")
        )
        assert consumer.process_batch([Message("m-1"), Message("m-2")]) == ["m-1", "m-2"]


@newest_postgres
def test_statement_of_the_work_is_no_wrong_setting(database_url: str) -> None:
    """C30: the table that is missing is the user's, and the advice about the schema would mislead."""

    def work(connection: Any) -> StoredResponse:
        connection.execute("SELECT FROM nowhere")
        return StoredResponse(201, "")

    identity = RequestIdentity.create("ann", "POST /orders", "k-1", {})
    with closing(TransactionGuard(database_url)) as guard, pytest.raises(InternalError) as raised:
        guard.run(identity, work)
    assert str(raised.value) == 'PostgreSQL refused a statement: relation "nowhere" does not exist (42P01)'


@pytest.fixture(params=["no password", "wrong password", "no permission", "no such index"])
def wrong_redis(request: pytest.FixtureRequest, private_valkey: ValkeyServer) -> tuple[str, str]:
    """Return the address of a Redis that refuses it, and the reason."""
    host = private_valkey.url.removeprefix("redis://").removesuffix("/0")
    with connect_redis(private_valkey.url) as client:
        match request.param:
            case "no such index":
                return f"redis://{host}/99", "DB index is out of range"
            case "no permission":
                client.execute_command("ACL", "SETUSER", "default", "-@write", "-@scripting")
                return f"redis://{host}/0", "no permissions to run"
        client.config_set("requirepass", "secret")
    is_missing = request.param == "no password"
    return f"redis://{'' if is_missing else ':wrong@'}{host}/0", "[Aa]uthentication|invalid username-password"


def test_redis_that_refuses_the_user_is_a_wrong_setting(
    wrong_redis: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """C6, C30: also for keys with a mark, which are checked by a script, and for locks."""
    url, reason = wrong_redis
    with connect_redis(url) as client:
        calls: tuple[Callable[[], object], ...] = (
            lambda: run_open(RedisStore(client)),
            lambda: RedisStore(client).check(Key("ordered", mark=1), MINUTE),
            lambda: RedisLocks(client).acquire("job", MINUTE),
        )
        for call in calls:
            with pytest.raises(ConfigError, match=f"Redis refuses .*({reason})"):
                call()

    async def run() -> None:
        async with connect_redis_async(url) as own:
            with pytest.raises(ConfigError, match=reason):
                await AsyncRedisStore(own).check(KEY, MINUTE)

    asyncio.run(run())
    assert "redis unavailable" not in caplog.text
    assert run_open(MemoryStore()) == ["o-1"]
