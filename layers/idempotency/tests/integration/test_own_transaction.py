"""C28: keys in transactions that the caller opens and commits, with psycopg, SQLAlchemy and Django."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire_idempotency import (
    GuardSettings,
    InboxGuard,
    Message,
    RequestIdentity,
    StoredResponse,
    TransactionGuard,
    by_timestamp,
    by_version,
    entity_key,
)
from grantwire_idempotency.databases import NoResponseError, set_limit
from grantwire_idempotency.errors import InternalError, KeyConflictError, RequestInProgressError
from layers.idempotency.tests.integration.test_unresponsive_postgres import SHORT, stopped_backends
from layers.idempotency.tests.support.callers import KINDS, Caller, open_caller, undone
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres
from tests.support.waiting import WAIT_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.fixtures import Rows

__all__ = ["database_url"]

PATIENT = timedelta(seconds=WAIT_SECONDS)
INBOX = InboxGuard(name="orders", lock_wait=PATIENT)
GUARD = TransactionGuard(settings=GuardSettings(lock_wait=PATIENT))
IDENTITY = RequestIdentity.create("ann", "POST /orders", "k1", {"total": 5})
OTHER = RequestIdentity.create("ann", "POST /orders", "k2", {"total": 5})
MESSAGE = Message("m1")
RESPONSE = StoredResponse(201, '{"order_id": 1}')
INSERT = "INSERT INTO orders VALUES (1)"


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """Create a table for the effects, and forget what other tests recorded."""
    rows.execute("DROP TABLE IF EXISTS orders")
    rows.execute("TRUNCATE idempotency_keys, processed_messages, guarded_transactions")
    rows.execute("CREATE TABLE orders (version int)")
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    return rows


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of program."""
    return str(request.param)


@pytest.fixture
def caller(kind: str, database_url: str) -> Iterator[Caller]:
    """Open a program of each kind."""
    with open_caller(kind, database_url) as caller:
        yield caller


def versions(rows: Rows) -> list[int]:
    """Return the rows that were committed."""
    return [row["version"] for row in rows.execute("SELECT version FROM orders ORDER BY version").fetchall()]


def record(caller: Caller, message: Message = MESSAGE, inbox: InboxGuard = INBOX) -> bool:
    """Process a message in a transaction, and return whether it was new."""
    with caller.begin():
        is_new = inbox.record(caller.connection, message)
        if is_new:
            caller.execute(INSERT)
    return is_new


def respond(caller: Caller, identity: RequestIdentity = IDENTITY) -> StoredResponse:
    """Handle a request in a transaction."""
    with caller.begin():
        stored = GUARD.begin(caller.connection, identity)
        if stored is None:
            caller.execute(INSERT)
            GUARD.finish(caller.connection, identity, RESPONSE)
    return stored or RESPONSE


def test_message_and_rows_are_committed_together_or_not_at_all(caller: Caller, orders: Rows) -> None:
    """C28: a rollback makes the message new again; after a commit it is a duplicate."""
    with undone(caller.begin()):
        assert INBOX.record(caller.connection, MESSAGE)
        caller.execute(INSERT)
    assert versions(orders) == []
    assert [record(caller), record(caller)] == [True, False]
    assert versions(orders) == [1]
    (row,) = orders.execute("SELECT status, claimed_by, expires_at - completed_at AS ttl FROM processed_messages")
    assert row == {"status": "completed", "claimed_by": None, "ttl": timedelta(days=1)}


def test_request_and_rows_are_committed_together_or_not_at_all(caller: Caller, orders: Rows) -> None:
    """C28: a repeat gets the stored response; the key of another request is a conflict that ends no transaction."""
    with undone(caller.begin()):
        assert GUARD.begin(caller.connection, IDENTITY) is None
        caller.execute(INSERT)
        GUARD.finish(caller.connection, IDENTITY, RESPONSE)
    assert versions(orders) == []
    assert [respond(caller).replayed, respond(caller).replayed] == [False, True]
    assert respond(caller) == StoredResponse(201, '{"order_id": 1}', "REPLAYED")
    with caller.begin():
        with pytest.raises(KeyConflictError):
            GUARD.begin(caller.connection, RequestIdentity.create("ann", "POST /orders", "k1", {"total": 6}))
        caller.execute("INSERT INTO orders VALUES (2)")
    assert versions(orders) == [1, 2]


def test_savepoint_that_is_rolled_back_forgets_its_keys(caller: Caller, orders: Rows) -> None:
    """C28: and the transaction around it continues; one that is released keeps them."""
    with caller.begin():
        caller.execute("SELECT 1")  # without a transaction, psycopg would begin one instead of the savepoint
        with undone(caller.savepoint()):
            assert INBOX.record(caller.connection, MESSAGE)
            assert GUARD.begin(caller.connection, IDENTITY) is None
            caller.execute(INSERT)
        with caller.savepoint():
            assert INBOX.record(caller.connection, Message("m2"))
            assert GUARD.begin(caller.connection, OTHER) is None
        with undone(caller.savepoint()):  # the work may fail, and the response says so
            caller.execute(INSERT)
        GUARD.finish(caller.connection, OTHER, StoredResponse(422, "sold out"))
    assert versions(orders) == []
    assert [record(caller, Message(name)) for name in ("m1", "m2")] == [True, False]
    assert [respond(caller, identity).status_code for identity in (IDENTITY, OTHER)] == [201, 422]


def test_several_messages_share_a_transaction(caller: Caller, orders: Rows) -> None:
    """C28: a batch with a duplicate in it is one transaction; the lock timeout of the caller stays the same."""
    with caller.begin():
        caller.execute("SET LOCAL lock_timeout = '7s'")
        assert [INBOX.record(caller.connection, Message(name)) for name in ("m1", "m2", "m1")] == [True, True, False]
        assert GUARD.begin(caller.connection, IDENTITY) is None
        caller.execute("INSERT INTO orders SELECT extract(epoch FROM current_setting('lock_timeout')::interval)")
        GUARD.finish(caller.connection, IDENTITY, RESPONSE)
    assert versions(orders) == [7]


@pytest.mark.parametrize("strategy", [by_version, by_timestamp])
def test_older_message_is_not_new(strategy: Any, database_url: str, orders: Rows) -> None:
    """C28: versions and times decide, and an entity is remembered for `order_ttl`, a message for `ttl`."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    inbox = InboxGuard(name="orders", identify=strategy(entity_key("order", "id"), "mark"), clock=lambda: now)
    plain = InboxGuard(name="plain", clock=lambda: now)

    def order(mark: int) -> Message:
        return Message(f"m{mark}", body=json.dumps({"id": "o1", "mark": mark}))

    with open_caller("psycopg", database_url) as caller:
        assert [record(caller, order(mark), inbox) for mark in (2, 1, 2, 3)] == [True, False, False, True]
        assert record(caller, order(1), plain)
        now += timedelta(days=1, seconds=1)
        assert [record(caller, order(1), each) for each in (inbox, plain)] == [False, True]
        now += timedelta(days=30)
        assert record(caller, order(1), inbox)
    assert versions(orders) == [1] * 5


def wait_for_lock(rows: Rows) -> None:
    """Wait until a session of the database waits for another one."""
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until("a session that waits", lambda: rows.execute(waiting).fetchall())


@newest_postgres
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("call", [record, respond])
def test_concurrent_caller_waits_and_sees_the_result(
    call: Callable[[Caller], Any], commits: bool, kind: str, database_url: str, orders: Rows
) -> None:
    """C28: after a commit it gets a duplicate or the stored response, after a rollback it does the work."""
    results: list[Any] = []

    def run() -> None:
        with open_caller(kind, database_url) as second:
            results.append(call(second))

    waiting = threading.Thread(target=run)
    with open_caller("psycopg", database_url) as first, ExitStack() as block:
        block.enter_context(first.begin() if commits else undone(first.begin()))
        assert INBOX.record(first.connection, MESSAGE)
        assert GUARD.begin(first.connection, IDENTITY) is None
        first.execute(INSERT)
        GUARD.finish(first.connection, IDENTITY, RESPONSE)
        waiting.start()
        wait_for_lock(orders)
        block.close()
        waiting.join()
    expected = not commits if call is record else StoredResponse(201, RESPONSE.body, ("APPLIED", "REPLAYED")[commits])
    assert results == [expected]
    assert versions(orders) == [1]


@newest_postgres
def test_key_that_is_held_for_too_long_is_in_progress(caller: Caller, database_url: str, orders: Rows) -> None:
    """C28: also one that a worker has claimed; the transaction of the caller can continue."""
    short = timedelta(milliseconds=50)
    inbox, guard = InboxGuard(name="orders", lock_wait=short), TransactionGuard(settings=GuardSettings(lock_wait=short))
    with open_caller("psycopg", database_url) as first, first.begin():
        INBOX.record(first.connection, MESSAGE)
        GUARD.begin(first.connection, IDENTITY)
        GUARD.finish(first.connection, IDENTITY, RESPONSE)
        with caller.begin():
            with pytest.raises(RequestInProgressError):
                inbox.record(caller.connection, MESSAGE)
            with pytest.raises(RequestInProgressError):
                guard.begin(caller.connection, IDENTITY)
            assert inbox.record(caller.connection, Message("m2"))
            caller.execute(INSERT)
    assert versions(orders) == [1]
    assert not record(caller, Message("m2"))


@newest_postgres
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_level_raises_the_error_of_the_connection(
    isolation: str, kind: str, database_url: str, orders: Rows
) -> None:
    """C28: for a key that was committed since the snapshot: nothing is done twice, and a repeat is a duplicate."""
    with open_caller("psycopg", database_url) as first, open_caller(kind, database_url, isolation) as second:
        for call in (record, respond):
            assert_not_serializable(kind, partial(overtake, first, second, call))
        assert not record(second)
        assert respond(second).replayed
    assert versions(orders) == [1, 1]


def overtake(first: Caller, second: Caller, call: Callable[[Caller], Any]) -> None:
    """Let the second caller take its snapshot before the first one commits."""
    with second.begin():
        second.execute("SELECT FROM orders")
        call(first)
        if call is record:
            INBOX.record(second.connection, MESSAGE)
        else:
            assert GUARD.begin(second.connection, IDENTITY) is None
            second.execute(INSERT)
            GUARD.finish(second.connection, IDENTITY, RESPONSE)


def assert_not_serializable(kind: str, call: Callable[[], None]) -> None:
    """The error is that of psycopg, SQLAlchemy or Django, whose callers know how to repeat a transaction."""
    with pytest.raises(Exception, match="could not serialize") as caught:
        call()
    module = type(caught.value).__module__.partition(".")[0]
    assert module == ("sqlalchemy" if kind == "session" else kind.partition("-")[0])
    cause = caught.value if module == "psycopg" else caught.value.__cause__
    assert isinstance(cause, psycopg.errors.SerializationFailure)


def test_commit_without_finish_commits_nothing(caller: Caller, orders: Rows) -> None:
    """C28: otherwise the rows would be committed without the key, and a repeat would write them again."""

    def forget() -> None:
        with caller.begin():
            assert GUARD.begin(caller.connection, IDENTITY) is None
            caller.execute(INSERT)

    with pytest.raises(Exception, match="`begin` needs `finish`"):
        forget()
    assert versions(orders) == []
    assert respond(caller) == RESPONSE
    assert versions(orders) == [1]


def test_finish_belongs_to_the_begin_of_the_same_transaction(caller: Caller, database_url: str, orders: Rows) -> None:
    """C28: another request, another transaction, a second time and a response that is never stored are errors."""
    connection = caller.connection

    def begin() -> None:
        assert GUARD.begin(connection, IDENTITY) is None

    def finish(identity: RequestIdentity = IDENTITY, response: Any = RESPONSE) -> None:
        GUARD.finish(connection, identity, response)

    def finish_elsewhere() -> None:
        with open_caller("psycopg", database_url) as other, other.begin():
            GUARD.finish(other.connection, IDENTITY, RESPONSE)

    mistakes: list[tuple[str, list[Callable[[], Any]]]] = [
        ("needs `begin`", [finish]),
        ("needs `begin`", [begin, lambda: finish(OTHER)]),
        ("needs `begin`", [begin, finish, finish]),
        ("needs `begin`", [begin, finish_elsewhere]),
        ("already open", [begin, lambda: GUARD.begin(connection, OTHER)]),
        ("status 503 is never stored", [begin, lambda: finish(response=StoredResponse(503, ""))]),
        ("must return a StoredResponse", [begin, lambda: finish(response={"status": 201})]),
    ]

    def run(steps: list[Callable[[], Any]]) -> None:
        with caller.begin():
            caller.execute(INSERT)
            for step in steps:
                step()

    for message, steps in mistakes:
        with pytest.raises(InternalError, match=message):
            run(steps)
    assert versions(orders) == []
    assert orders.execute("SELECT FROM idempotency_keys").fetchall() == []


@newest_postgres
def test_server_that_does_not_respond_ends_the_wait(database_url: str, orders: Rows) -> None:
    """C26, C28: after `timeout` and `lock_wait`; a limit of the caller's own connection stays as it was."""
    inbox = InboxGuard(name="orders", lock_wait=SHORT, timeout=SHORT)
    with open_caller("psycopg", database_url) as caller, undone(caller.begin()):
        set_limit(caller.connection, 1)
        assert inbox.record(caller.connection, MESSAGE)
        with pytest.raises(psycopg.errors.QueryCanceled):
            caller.execute("SELECT pg_sleep(60)")
    with open_caller("psycopg", database_url) as caller:
        caller.execute("SELECT 1")
        with stopped_backends(database_url), pytest.raises(NoResponseError, match=r"within 0\.4 s"):
            inbox.record(caller.connection, MESSAGE)
    assert orders.execute("SELECT FROM processed_messages").fetchall() == []


@newest_postgres
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_process_leaves_nothing(kind: str, database_url: str, orders: Rows) -> None:
    """C28: neither the keys nor the rows, however far its transaction was; the next process does the work."""
    with open_caller(kind, database_url) as caller:
        for steps in range(5):
            kill_after(steps, kind, database_url)
            assert versions(orders) == []
        assert [record(caller), respond(caller)] == [True, RESPONSE]
    assert versions(orders) == [1, 1]


def kill_after(steps: int, kind: str, url: str) -> None:
    """Fork a process that works on a message and a request, and kill it after so many steps of its transaction."""
    progress, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with open_caller(kind, url) as caller, caller.begin():
                for step in list_steps(caller)[:steps]:
                    step()
                os.write(report, b".")
                signal.pause()
        finally:
            os._exit(1)
    os.close(report)
    assert os.read(progress, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(progress)


def list_steps(caller: Caller) -> list[Callable[[], Any]]:
    """Return the steps of a transaction with a message and a request."""
    return [
        partial(INBOX.record, caller.connection, MESSAGE),
        partial(GUARD.begin, caller.connection, IDENTITY),
        partial(caller.execute, INSERT),
        partial(GUARD.finish, caller.connection, IDENTITY, RESPONSE),
    ]
