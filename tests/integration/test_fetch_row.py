"""One row for one statement: what goes in comes out, and an error leaves the connection as good as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.errors import InternalError, RetryableError
from grantwire.settings import load
from tests.support.plaintext import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """One execution environment's connection."""
    database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
    yield database
    database.close()


def test_values_and_nulls_go_in_and_come_out(database: Database) -> None:
    """A parameter may be used more than once."""
    statement = "SELECT %(a)s::text, %(b)s::text, %(a)s || '!', %(n)s::integer + 1, now() IS NULL, ''"
    for a in ("x", "ü \"'\\ %", ""):
        row = database.fetch_row(statement, {"a": a, "b": None, "n": 41})
        assert row == (a, None, f"{a}!", 42, False, "")


def test_more_than_a_socket_takes_at_once_goes_through(database: Database) -> None:
    """And comes back."""
    large = "x" * 20_000_000
    assert database.fetch_row("SELECT %(a)s::text, length(%(a)s)", {"a": large}) == (large, len(large))


def test_a_refused_statement_leaves_the_connection_usable(database: Database) -> None:
    """A bug of ours is told as one, and the next call is none the worse; nor is a statement that cannot be prepared."""
    divide = "SELECT 1 / %(n)s::integer"
    for _ in range(2):
        with pytest.raises(InternalError, match="division by zero"):
            database.fetch_row(divide, {"n": 0})
        with pytest.raises(InternalError, match="does not exist"):
            database.fetch_row("SELECT * FROM nowhere", {})
        assert database.fetch_row(divide, {"n": 1}) == (1,)


def test_a_statement_that_must_return_a_row_and_does_not_is_told(database: Database) -> None:
    """Rather than taken for an empty answer."""
    with pytest.raises(InternalError, match="returned none"):
        database.fetch_row("SELECT 1 WHERE false", {})


def test_statements_are_prepared_again_on_a_new_connection(database: Database) -> None:
    """The server forgets them with the connection, whoever ended it."""
    whoami = "SELECT pg_backend_pid()"
    (first,) = database.fetch_row(whoami, {})
    database.close()
    (second,) = database.fetch_row(whoami, {})
    assert first != second
    with database.session() as own:
        own.execute("SET statement_timeout = '50ms'")
    with pytest.raises(RetryableError):
        database.fetch_row("SELECT pg_sleep(5)", {})
    assert database.fetch_row(whoami, {}) == (second,)


def test_a_connection_that_was_ended_is_made_again_once(database: Database, owner_url: str) -> None:
    """What was sent is sent again over a new one."""
    (pid,) = database.fetch_row("SELECT pg_backend_pid()", {})
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    (other,) = database.fetch_row("SELECT pg_backend_pid()", {})
    assert other != pid
