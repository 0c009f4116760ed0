"""C18: the inbox guard commits a message's key and its rows together, exactly once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from grantwire_idempotency import InboxGuard, Message, Outcome, by_timestamp, by_version, entity_key, new_messages
from grantwire_idempotency.errors import ConfigError, InternalError, RequestInProgressError
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Rows

    Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """Create a table for the effects."""
    rows.execute("CREATE TABLE orders (order_id text, version int)")
    rows.execute("GRANT SELECT, INSERT, UPDATE ON orders TO grantwire_functions")
    return rows


@pytest.fixture
def pool(database_url: str) -> Iterator[ConnectionPool]:
    """Return a pool of the role that functions have."""
    with ConnectionPool(database_url, min_size=1, max_size=4) as pool:
        yield pool


def order(identifier: str = "m1", version: int = 1) -> Message:
    """Return a message."""
    body = {"id": "o1", "version": version, "at": f"2026-01-01T00:00:{version:02}Z"}
    return Message(identifier, "order", json.dumps(body))


def insert(tx: Connection, message: Message) -> int:
    """Write the row of a message."""
    tx.execute("INSERT INTO orders VALUES (%(id)s, %(version)s)", message.payload)
    return int(message.payload["version"])


def versions(rows: Rows) -> list[int]:
    """Return the versions that were written."""
    return [row["version"] for row in rows.execute("SELECT version FROM orders ORDER BY version").fetchall()]


@pytest.mark.parametrize("kind", ["dsn", "connection", "pool"])
def test_message_has_its_rows_once(kind: str, database_url: str, pool: ConnectionPool, orders: Rows) -> None:
    """C18, 002: the second delivery writes nothing and gets the stored result."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        database = {"dsn": database_url, "connection": connection, "pool": pool}[kind]
        guard = InboxGuard(database, name="orders")  # type: ignore[arg-type]
        message = order()
        assert guard.run(message, lambda tx: insert(tx, message)) == Outcome(1)
        assert guard.run(message, lambda tx: insert(tx, message)) == Outcome(1, replayed=True)
        guard.close()
    assert versions(orders) == [1]


def test_failed_work_records_nothing(pool: ConnectionPool, orders: Rows) -> None:
    """C18: key and rows are rolled back together, and the redelivery runs."""
    guard = InboxGuard(pool, name="orders")

    def fail(tx: Connection) -> None:
        insert(tx, order())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        guard.run(order(), fail)
    assert versions(orders) == []
    assert not guard.run(order(), lambda tx: insert(tx, order())).replayed
    assert versions(orders) == [1]


def test_name_can_have_colons(pool: ConnectionPool) -> None:
    """C30: two guards never share a key, whatever their names and keys contain."""
    for name, identifier in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c")):
        guard = InboxGuard(pool, name=name)
        assert not guard.run(Message(identifier), lambda _: None).replayed
        assert guard.run(Message(identifier), lambda _: None).replayed


def test_guards_with_different_names_do_not_share_keys(pool: ConnectionPool, orders: Rows) -> None:
    """C18: two consumers of one message each write their rows."""
    for name in ("orders", "invoices"):
        assert not InboxGuard(pool, name=name).run(order(), lambda tx: insert(tx, order())).replayed
    assert versions(orders) == [1, 1]


class Marked:
    """A serializer whose texts no other serializer can read."""

    def dump(self, value: Any) -> str:
        """Return the text with a mark."""
        return f"own {value}"

    def load(self, text: str) -> Any:
        """Read the number after the mark."""
        return int(text.removeprefix("own "))


def test_result_is_stored_by_the_serializer_of_the_user(pool: ConnectionPool, orders: Rows) -> None:
    """C16, C18: and read by it."""
    guard = InboxGuard(pool, name="orders", serializer=Marked())
    for is_replayed in (False, True):
        assert guard.run(order(), lambda tx: insert(tx, order())) == Outcome(1, replayed=is_replayed)
    assert orders.execute("SELECT result FROM processed_messages").fetchall() == [{"result": "own 1"}]


@newest_postgres
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_workers_leave_each_message_with_its_rows_once(database_url: str, orders: Rows) -> None:
    """C18: a kill at any point loses no row and doubles none, because the next worker starts from the beginning."""
    messages = [order(f"m{version}", version) for version in range(100)]
    for begun in range(10, 100, 10):
        assert not _works_through(database_url, messages, kill_after=begun)
    assert _works_through(database_url, messages)
    assert versions(orders) == list(range(100))


def _works_through(url: str, messages: list[Message], kill_after: int | None = None) -> bool:
    """Fork a worker that gets all messages; kill it soon after it has begun so many. Return whether it came to the end.

    Each call kills at another moment of the work on a message, which takes a few milliseconds.
    """
    progress, begin = os.pipe()
    child = os.fork()
    if child == 0:
        guard = InboxGuard(url, name="orders")
        for message in messages:
            os.write(begin, b".")
            guard.run(message, partial(insert, message=message))
        os._exit(0)
    os.close(begin)
    if kill_after is not None:
        for _ in range(kill_after):
            os.read(progress, 1)
        time.sleep(kill_after / 20_000)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(progress)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("strategy", [by_version, by_timestamp])
def test_older_message_never_runs_after_newer(strategy: Any, pool: ConnectionPool, orders: Rows) -> None:
    """C18, 001: versions and timestamps decide, in the transaction of the rows."""
    field = "version" if strategy is by_version else "at"
    guard = InboxGuard(pool, name="orders", identify=strategy(entity_key("order", "id"), field))
    for message in (order("m2", 2), order("m1", 1), order("m2b", 2), order("m3", 3)):
        guard.run(message, partial(insert, message=message))
    assert versions(orders) == [2, 3]


def test_concurrent_deliveries_wait_and_one_of_them_writes(pool: ConnectionPool, orders: Rows) -> None:
    """C18: the second delivery waits for the first and is then a duplicate; with a short wait it is in progress."""
    guard, impatient = (InboxGuard(pool, name="orders", lock_wait=timedelta(milliseconds=wait)) for wait in (5_000, 50))
    started, finish = threading.Event(), threading.Event()
    outcomes: list[Outcome] = []

    def slow(tx: Connection) -> int:
        started.set()
        assert finish.wait(30)
        return insert(tx, order())

    first = threading.Thread(target=lambda: outcomes.append(guard.run(order(), slow)))
    first.start()
    assert started.wait(30)
    with pytest.raises(RequestInProgressError):
        impatient.run(order(), lambda tx: insert(tx, order()))
    second = threading.Thread(target=lambda: outcomes.append(guard.run(order(), lambda tx: insert(tx, order()))))
    second.start()
    finish.set()
    first.join()
    second.join()
    assert sorted(outcome.replayed for outcome in outcomes) == [False, True]
    assert versions(orders) == [1]


def test_wait_for_the_key_leaves_the_lock_timeout_of_the_user(
    database_url: str, pool: ConnectionPool, orders: Rows
) -> None:
    """C18: `lock_wait` limits the wait for the key alone: not a statement of the work, and no later transaction."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '7s'")
        guard = InboxGuard(connection, name="orders", lock_wait=timedelta(milliseconds=50))

        def read_timeout(tx: Connection) -> Any:
            return tx.execute("SHOW lock_timeout").fetchone()

        def wait_for_key(_tx: Connection) -> None:
            with pytest.raises(RequestInProgressError):
                guard.run(order("claimed"), read_timeout)

        waited = threading.Thread(target=wait_for_key, args=[connection])

        def hold_key(_tx: Connection) -> None:
            waited.start()
            waited.join()

        InboxGuard(pool, name="orders").run(order("claimed"), hold_key)
        assert guard.run(order("new"), read_timeout) == Outcome(("7s",))
        assert guard.run(order("new"), read_timeout) == Outcome(["7s"], replayed=True)
        assert read_timeout(connection) == ("7s",)
    assert versions(orders) == []


def test_commit_inside_work_records_nothing(pool: ConnectionPool, orders: Rows) -> None:
    """C18, C19: neither the rows nor the key are committed."""
    guard = InboxGuard(pool, name="orders")

    def commit(tx: Connection) -> None:
        insert(tx, order())
        tx.commit()

    with pytest.raises(InternalError, match="must not commit"):
        guard.run(order(), commit)
    assert versions(orders) == []
    assert not guard.run(order(), lambda tx: insert(tx, order())).replayed


def test_rule_for_many_messages_refuses_other_names() -> None:
    """C18: the names become part of a statement."""
    assert "ORDER BY event_id" in new_messages(table="seen", key="event_id", source="batch", now="now()")
    with pytest.raises(ConfigError, match="not a plain identifier"):
        new_messages(table="seen; DROP TABLE seen", key="event_id", source="batch", now="now()")
