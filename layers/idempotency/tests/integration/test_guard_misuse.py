"""C19: the transaction guard takes any JSON, and no misuse of its transaction goes unnoticed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import RequestIdentity, StoredResponse, TransactionGuard, request_hash
from grantwire_idempotency.errors import BadRequestError, GrantwireError, InternalError, KeyConflictError
from tests.support.module_database import database_url
from tests.support.plaintext import PLAINTEXT
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.fixtures import Rows

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["database_url"]

IDENTITY = RequestIdentity.create("shop", "POST /orders", "k1", {"total": 5})


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """Create a table for the effects, and forget the requests of other tests."""
    rows.execute("DROP TABLE IF EXISTS orders")
    rows.execute("TRUNCATE idempotency_keys, guarded_transactions")
    rows.execute("CREATE TABLE orders (total int)")
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    return rows


@pytest.fixture(params=["dsn", "connection", "dict-rows", "pool", "Database"])
def guard(request: pytest.FixtureRequest, database_url: str) -> Iterator[TransactionGuard]:
    """Return a guard on each kind of connection."""
    match request.param:
        case "dsn":
            guard = TransactionGuard(database_url)
            yield guard
            guard.close()
        case "connection":
            with psycopg.connect(database_url, autocommit=True) as connection:
                yield TransactionGuard(connection)
        case "dict-rows":
            with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as dict_connection:
                yield TransactionGuard(dict_connection)
        case "pool":
            with ConnectionPool(database_url, min_size=1, max_size=2) as pool:
                yield TransactionGuard(pool)
        case _:
            database = Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": database_url}))
            yield TransactionGuard(database)
            database.close()


def insert(tx: Connection, status: int = 201) -> StoredResponse:
    """Write a row."""
    tx.execute("INSERT INTO orders VALUES (5)")
    return StoredResponse(status, "{}")


def count(rows: Rows, table: str = "orders") -> int:
    """Return the number of rows of a table."""
    return len(rows.execute(f"SELECT FROM {table}").fetchall())


def test_work_is_committed_once(guard: TransactionGuard, orders: Rows) -> None:
    """C16, C19: with any kind of connection."""
    assert not guard.run(IDENTITY, insert).replayed
    assert guard.run(IDENTITY, insert).replayed
    assert count(orders) == 1
    assert count(orders, "guarded_transactions") == 0


def commit_method(tx: Connection) -> None:
    """Commit with the method."""
    tx.commit()


def commit_statement(tx: Connection) -> None:
    """Commit with a statement."""
    tx.execute("COMMIT")


def roll_back_method(tx: Connection) -> None:
    """Roll back with the method."""
    tx.rollback()


def roll_back_statement(tx: Connection) -> None:
    """Roll back with a statement."""
    tx.cursor().execute("ROLLBACK")


def commit_and_hide(tx: Connection) -> None:
    """Commit and ignore the error."""
    with suppress(psycopg.Error):
        tx.commit()


@newest_postgres
def test_ending_the_transaction_is_an_error_and_leaves_nothing(
    guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests
) -> None:
    """C19: neither the rows before it nor those after it are committed, and the key can be used again."""
    ends = [commit_method, commit_statement, roll_back_method, roll_back_statement, commit_and_hide]
    for number, (end, continues) in enumerate(product(ends, [True, False])):

        def work(tx: Connection, end: Callable[[Connection], None] = end, *, continues: bool = continues) -> Any:
            response = insert(tx)
            end(tx)
            return insert(tx) if continues else response

        identity = RequestIdentity.create("shop", "POST /orders", f"k{number}", {"total": 5})
        with subtests.test(end=end.__name__, continues=continues):
            with pytest.raises(InternalError, match=r"must not commit|has ended the transaction"):
                guard.run(identity, work)
            assert (count(orders), count(orders, "idempotency_keys")) == (number, number)
            assert not guard.run(identity, insert).replayed
            assert count(orders) == number + 1


@newest_postgres
def test_work_may_stream_rows(guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests) -> None:
    """C19: all of them, or the first one; libpq would stream the first rows of the commit, too, and refuse it."""

    def stream(tx: Connection, rows: int) -> StoredResponse:
        response = insert(tx)
        stream = tx.cursor().stream("SELECT generate_series(1, 3)")
        assert len(list(islice(stream, rows))) == rows
        stream.close()  # type: ignore[attr-defined]
        return response

    for rows in (3, 1):
        with subtests.test(rows=rows):
            identity = RequestIdentity.create("shop", "POST /orders", f"k{rows}", {})
            assert [guard.run(identity, partial(stream, rows=rows)).replayed for _ in range(2)] == [False, True]
    assert count(orders) == 2


def copy_row(tx: Connection) -> None:
    """Write a row by COPY."""
    with tx.cursor().copy("COPY orders FROM STDIN") as copy:
        copy.write_row((5,))


def execute_many(tx: Connection) -> None:
    """Write a row by executemany."""
    tx.cursor().executemany("INSERT INTO orders VALUES (%s)", [(5,)])


def stream_row(tx: Connection) -> None:
    """Write a row by a streamed statement."""
    list(tx.cursor().stream("INSERT INTO orders VALUES (5) RETURNING total"))


@newest_postgres
def test_no_kind_of_statement_runs_after_the_transaction_has_ended(
    guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests
) -> None:
    """C19: PostgreSQL would commit it alone."""
    for write in (copy_row, execute_many, stream_row):

        def work(tx: Connection, write: Callable[[Connection], None] = write) -> StoredResponse:
            tx.rollback()
            write(tx)
            return StoredResponse(201, "{}")

        with subtests.test(write=write.__name__):
            with pytest.raises(InternalError, match="has ended the transaction"):
                guard.run(IDENTITY, work)
            assert count(orders) == 0


@newest_postgres
def test_copy_inside_the_transaction_is_committed(guard: TransactionGuard, orders: Rows) -> None:
    """C19: with the response."""

    def work(tx: Connection) -> StoredResponse:
        copy_row(tx)
        return StoredResponse(201, "{}")

    guard.run(IDENTITY, work)
    assert count(orders) == 1


@newest_postgres
def test_ending_the_transaction_before_a_refusal_is_an_error_too(
    guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests
) -> None:
    """C19: although nothing would be stored for a response that is not final."""
    for end in (roll_back_method, roll_back_statement, commit_and_hide):

        def work(tx: Connection, end: Callable[[Connection], None] = end) -> StoredResponse:
            response = insert(tx, status=503)
            end(tx)
            return response

        with subtests.test(end=end.__name__):
            with pytest.raises(InternalError, match="has ended the transaction"):
                guard.run(IDENTITY, work)
            assert count(orders) == 0


@newest_postgres
def test_nested_guard_is_an_error_and_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """C19: the inner guard would commit a part of the outer one's work, or wait for its connection."""
    inner = RequestIdentity.create("shop", "POST /payments", "k1", {})

    def work(tx: Connection) -> StoredResponse:
        insert(tx)
        return guard.run(inner, insert)

    with pytest.raises(InternalError, match="guards cannot be nested"):
        guard.run(IDENTITY, work)
    assert count(orders) == 0
    assert count(orders, "idempotency_keys") == 0


@newest_postgres
def test_savepoint_inside_work_is_allowed(guard: TransactionGuard, orders: Rows) -> None:
    """C19: `tx.transaction()` is the way to let a part of the work fail."""

    def work(tx: Connection) -> StoredResponse:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation), tx.transaction():
            tx.execute("INSERT INTO orders VALUES ('x')")
        return insert(tx)

    assert guard.run(IDENTITY, work).status_code == 201
    assert count(orders) == 1


@newest_postgres
def test_redirect_is_stored_with_its_work(guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests) -> None:
    """C19: it is never silently rolled back."""
    for number, status in enumerate((301, 303, 399), 1):
        identity = RequestIdentity.create("shop", "POST /orders", f"k{number}", {"total": 5})
        with subtests.test(status=status):
            assert guard.run(identity, partial(insert, status=status)).status_code == status
            assert guard.run(identity, insert) == StoredResponse(status, "{}", "REPLAYED")
            assert count(orders) == number


@newest_postgres
def test_invalid_status_is_an_error(guard: TransactionGuard, orders: Rows, subtests: pytest.Subtests) -> None:
    """C19: a mistake of the work is not a rollback without a word."""
    statuses: list[Any] = [100, 199, 600, "201"]
    for status in statuses:
        with subtests.test(status=status):
            with pytest.raises(InternalError, match="must return a status of 200 to 599"):
                guard.run(IDENTITY, partial(insert, status=status))
            assert count(orders) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"total": 5}, {"total": 6}),
        ({"total": 5}, {"total": "5"}),
        ({"a": [1, None, {"b": True}]}, {"a": [1]}),
        ([{"total": 5}], {"total": 5}),
        ("5", 5),
        (None, {}),
    ],
)
def test_request_hash_takes_any_json(one: Any, other: Any) -> None:
    """C19: equal requests have equal hashes, and different ones do not."""
    assert request_hash(one) == request_hash(dict(reversed(one.items())) if isinstance(one, dict) else one)
    assert request_hash(one) != request_hash(other)
    with pytest.raises(BadRequestError, match="only JSON values"):
        request_hash({"total": object()})


@newest_postgres
def test_same_key_with_another_number_is_a_conflict(guard: TransactionGuard, orders: Rows) -> None:
    """C19: the hash contains the numbers."""
    guard.run(IDENTITY, insert)
    with pytest.raises(KeyConflictError):
        guard.run(RequestIdentity.create("shop", "POST /orders", "k1", {"total": 6}), insert)
    assert count(orders) == 1


@pytest.mark.parametrize("part", ["caller", "route", "key"])
def test_identity_needs_all_its_parts(part: str) -> None:
    """C19: an identity without a caller would be shared by all of them."""
    parts: dict[str, Any] = {"caller": "shop", "route": "POST /orders", "key": "k1", "fields": {}} | {part: " "}
    with pytest.raises(GrantwireError, match="must not be empty"):
        RequestIdentity.create(**parts)
