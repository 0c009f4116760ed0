"""`Database.fetch_row` returns one row of one statement, and an error leaves the connection usable."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import InternalError, RetryableError
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = newest_postgres


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The connection of one execution environment."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield database
    database.close()


def test_parameters_are_returned_unchanged(database: Database) -> None:
    """Texts, numbers and NULL; a parameter may be used more than once."""
    statement = "SELECT %(a)s::text, %(b)s::text, %(a)s || '!', %(n)s::integer + 1, now() IS NULL, ''"
    for a in ("x", "ü \"'\\ %", ""):
        row = database.fetch_row(statement, {"a": a, "b": None, "n": 41})
        assert row == (a, None, f"{a}!", 42, False, "")


def test_plans_are_not_compiled(database: Database) -> None:
    """PostgreSQL 15 would compile plans of functions that disable kinds of scans, for seconds under load."""
    assert database.fetch_row("SELECT current_setting('jit')", {}) == ("off",)


def test_parameter_larger_than_the_socket_buffer_is_sent(database: Database) -> None:
    """A value of 20 MB is sent and returned."""
    large = "x" * 20_000_000
    assert database.fetch_row("SELECT %(a)s::text, length(%(a)s)", {"a": large}) == (large, len(large))


def test_refused_statement_leaves_the_connection_usable(database: Database) -> None:
    """It raises InternalError, whether preparing or running it fails, and the next statement works."""
    divide = "SELECT 1 / %(n)s::integer"
    for _ in range(2):
        with pytest.raises(InternalError, match="division by zero"):
            database.fetch_row(divide, {"n": 0})
        with pytest.raises(InternalError, match="does not exist"):
            database.fetch_row("SELECT * FROM nowhere", {})
        assert database.fetch_row(divide, {"n": 1}) == (1,)


def test_statement_without_a_row_is_an_internal_error(database: Database) -> None:
    """A missing row is a bug, not an empty response."""
    with pytest.raises(InternalError, match="returned none"):
        database.fetch_row("SELECT 1 WHERE false", {})


def test_statements_are_prepared_again_on_a_new_connection(database: Database) -> None:
    """Prepared statements end with their connection; a statement timeout does not end it."""
    backend_pid = "SELECT pg_backend_pid()"
    (first,) = database.fetch_row(backend_pid, {})
    database.close()
    (second,) = database.fetch_row(backend_pid, {})
    assert first != second
    with database.session() as connection:
        connection.execute("SET statement_timeout = '50ms'")
    with pytest.raises(RetryableError):
        database.fetch_row("SELECT pg_sleep(5)", {})
    assert database.fetch_row(backend_pid, {}) == (second,)


def test_statement_is_repeated_after_the_connection_was_terminated(database: Database, owner_url: str) -> None:
    """The statement is sent again over a new connection."""
    (pid,) = database.fetch_row("SELECT pg_backend_pid()", {})
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    (other,) = database.fetch_row("SELECT pg_backend_pid()", {})
    assert other != pid


def test_statement_is_repeated_after_a_deadlock(owner_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No statement of ours should deadlock (W7); if one does, it is sent again, and the caller gets its result."""
    settings = load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": owner_url})
    database = Database(settings, session={"deadlock_timeout": "100ms"})
    lock = "SELECT pg_advisory_xact_lock(%(first)s)::text, pg_advisory_xact_lock(%(second)s)::text"
    with psycopg.connect(owner_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SET deadlock_timeout = '1 min'")
        other.execute("SELECT pg_advisory_xact_lock(2)")
        (pid,) = database.fetch_row("SELECT pg_backend_pid()", {})
        repeated = pool.submit(database.fetch_row, lock, {"first": 1, "second": 2})
        with psycopg.connect(owner_url, autocommit=True) as observer:
            waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
            until("the statement waits", lambda: bool(observer.execute(waits, (pid,)).fetchall()))
        other.execute("SELECT pg_advisory_xact_lock(1)")
        other.rollback()
        assert repeated.result(timeout=30) == ("", "")
    database.close()
    assert "deadlock, repeating the statement" in capsys.readouterr().out
