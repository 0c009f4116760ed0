"""C28: what cannot be right is refused: a connection without a transaction, and `run` in one of other code."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import connections, transaction
from sqlalchemy.orm import Session

from grantwire_idempotency import InboxGuard, Message, RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import ConfigError, InternalError
from layers.idempotency.tests.support.callers import (
    KINDS,
    Caller,
    django_alias,
    open_caller,
    open_engine,
    undone,
)
from tests.support.module_database import database_url
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Rows

__all__ = ["database_url"]

pytestmark = newest_postgres

INBOX = InboxGuard(name="orders")
GUARD = TransactionGuard()
IDENTITY = RequestIdentity.create("ann", "POST /orders", "k1", {"total": 5})


@pytest.fixture
def keys(rows: Rows) -> Rows:
    """Forget what other tests recorded."""
    rows.execute("TRUNCATE idempotency_keys, processed_messages, guarded_transactions")
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


def count(rows: Rows) -> int:
    """Return the number of recorded messages."""
    return len(rows.execute("SELECT FROM processed_messages").fetchall())


def test_connection_without_an_open_transaction_is_refused(kind: str, database_url: str, keys: Rows) -> None:
    """C28: the key would be committed alone. A default connection of psycopg or SQLAlchemy begins by itself."""
    with ExitStack() as stack:
        if kind == "psycopg":
            connection: Any = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        elif kind in ("sqlalchemy", "session"):
            engine = stack.enter_context(open_engine(database_url, isolation_level="AUTOCOMMIT"))
            connection = stack.enter_context(engine.connect() if kind == "sqlalchemy" else Session(engine))
        else:
            connection = stack.enter_context(open_caller(kind, database_url)).connection
        with pytest.raises(InternalError, match="no transaction is open"):
            INBOX.record(connection, Message("m1"))
        with pytest.raises(InternalError, match="no transaction is open"):
            GUARD.begin(connection, IDENTITY)
    assert count(keys) == 0


def test_failed_transaction_is_refused(caller: Caller) -> None:
    """C28: PostgreSQL would refuse it with a sentence that says nothing about the key."""
    with undone(caller.begin()):
        with pytest.raises(Exception, match="division by zero"):
            caller.execute("SELECT 1 / 0")
        with pytest.raises(InternalError, match="the transaction has failed"):
            INBOX.record(caller.connection, Message("m1"))


def test_read_only_transaction_is_refused(caller: Caller) -> None:
    """C28: also for a duplicate, so that the mistake shows at the first message."""
    with caller.begin():
        INBOX.record(caller.connection, Message("m1"))
    with caller.begin():
        caller.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(InternalError, match="the transaction is read-only"):
            INBOX.record(caller.connection, Message("m1"))
        with pytest.raises(InternalError, match="the transaction is read-only"):
            GUARD.begin(caller.connection, IDENTITY)


def test_other_objects_are_refused(database_url: str, tmp_path: Path) -> None:
    """C28: with a sentence that names what is needed."""
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine("sqlite://"))
        connection = stack.enter_context(engine.connect())
        file = tmp_path / "django.db"  # Django never closes a database in memory
        alias = stack.enter_context(django_alias("", ENGINE="django.db.backends.sqlite3", NAME=str(file)))
        for other in (connection, connections[alias]):
            with pytest.raises(InternalError, match=r"must be psycopg 3, not sqlite3\.Connection"):
                INBOX.record(other, Message("m1"))
    others: list[Any] = [database_url, engine, None, psycopg.AsyncConnection]
    for other in others:
        with pytest.raises(InternalError, match="needs an open transaction on a psycopg Connection"):
            INBOX.record(other, Message("m1"))


def test_missing_schema_is_named(caller: Caller) -> None:
    """C28: the error says how to install it."""
    with undone(caller.begin()):
        caller.execute("SET LOCAL search_path = pg_catalog")
        with pytest.raises(ConfigError, match="is the schema installed"):
            INBOX.record(caller.connection, Message("m1"))


def test_run_is_refused_on_a_connection_with_a_transaction_of_other_code(
    kind: str, database_url: str, keys: Rows
) -> None:
    """C28: also before the first statement, when psycopg shows none: `run` would commit, although the block fails."""
    with open_caller(kind, database_url) as caller, undone(caller.begin()):
        driver = find_driver(kind, caller)
        guard, requests = InboxGuard(driver, name="orders"), TransactionGuard(driver)
        with pytest.raises(InternalError, match=r"not in autocommit mode|is in a transaction"):
            guard.run(Message("m1"), lambda _: None)
        with pytest.raises(InternalError, match=r"not in autocommit mode|is in a transaction"):
            requests.run(IDENTITY, lambda _: StoredResponse(200, ""))
    assert count(keys) == 0


def find_driver(kind: str, caller: Caller) -> Any:
    """Return the connection of psycopg below."""
    if kind == "django":
        with caller.connection.cursor() as cursor:
            return cursor.connection
    if kind == "session":
        return caller.connection.connection().connection.driver_connection
    return caller.connection.connection.driver_connection if kind == "sqlalchemy" else caller.connection


def test_run_outside_of_atomic_is_allowed(database_url: str, keys: Rows) -> None:
    """C28: Django's connection is in autocommit mode there."""
    with django_alias(database_url) as alias:
        with connections[alias].cursor() as cursor:
            guard = InboxGuard(cursor.connection, name="orders")
        assert not guard.run(Message("m1"), lambda _: None).replayed
        with transaction.atomic(using=alias):
            assert not INBOX.record(connections[alias], Message("m1"))
    assert count(keys) == 1


def test_transaction_of_a_framework_is_no_database_of_a_guard(database_url: str) -> None:
    """C28: a session has the method of a pool; a setting that is missing is not a guard without a database."""
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(database_url))
        alias = stack.enter_context(django_alias(database_url))
        others: list[Any] = [engine, stack.enter_context(Session(engine)), engine.connect(), connections[alias], None]
        stack.callback(others[2].close)
        for other in others:
            with pytest.raises(ConfigError, match="InboxGuard requires a DSN"):
                InboxGuard(other, name="orders")
            with pytest.raises(ConfigError, match="TransactionGuard requires a DSN"):
                TransactionGuard(other)


def test_run_without_a_database_is_an_error(keys: Rows) -> None:
    """C28: a guard that only records in transactions of its callers needs none, and closes none."""
    with pytest.raises(InternalError, match="this guard has no database"):
        INBOX.run(Message("m1"), lambda _: None)
    with pytest.raises(InternalError, match="this guard has no database"):
        GUARD.run(IDENTITY, lambda _: StoredResponse(200, ""))
    INBOX.close()
    GUARD.close()
    assert count(keys) == 0


def test_guarded_work_may_record_other_messages(database_url: str, keys: Rows) -> None:
    """C28: they are committed with it, or not at all; a request cannot be begun inside another guard."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        guard = InboxGuard(connection, name="batches")

        def fail(tx: Any) -> None:
            assert INBOX.record(tx, Message("m1"))
            GUARD.begin(tx, IDENTITY)

        with pytest.raises(InternalError, match="guards cannot be nested"):
            guard.run(Message("b1"), fail)
        assert count(keys) == 0
        assert guard.run(Message("b1"), lambda tx: INBOX.record(tx, Message("m1"))).value is True
        assert guard.run(Message("b2"), lambda tx: INBOX.record(tx, Message("m1"))).value is False
    assert count(keys) == 3
