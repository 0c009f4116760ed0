"""The transaction guard: key, work and stored response are committed together or not at all (E6, I1-I8)."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.settings import load
from grantwire_idempotency import GuardSettings, RequestIdentity, StoredResponse, TransactionGuard, request_hash
from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    InternalError,
    KeyConflictError,
    RequestInProgressError,
    RetryableError,
)
from tests.support.concurrency import run_concurrently
from tests.support.plaintext import PLAINTEXT
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from infra.local.servers.postgres import PostgresServer
    from tests.support.fixtures import Rows

ORDERS = (
    "CREATE TABLE IF NOT EXISTS orders (order_id int GENERATED ALWAYS AS IDENTITY, customer text UNIQUE, total int)"
)
SETTINGS = GuardSettings(ttl=timedelta(hours=24), lock_wait=timedelta(seconds=2))


@contextmanager
def open_guard(url: str, settings: GuardSettings = SETTINGS) -> Iterator[TransactionGuard]:
    """Return a guard with its own connection."""
    with closing(Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url}))) as database:
        yield TransactionGuard(database, settings)


@pytest.fixture
def guard(database_url: str, orders: Rows) -> Iterator[TransactionGuard]:
    """Return a guard for a handler that takes orders."""
    assert count_orders(orders) == 0
    with open_guard(database_url) as guard:
        yield guard


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """Create a table that is unrelated to entitlements."""
    rows.execute(ORDERS)
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    return rows


def identity(key: str, total: int = 5, *, caller: str = "shop", route: str = "POST /orders") -> RequestIdentity:
    """Return the identity of a request."""
    return RequestIdentity(caller, route, key, request_hash({"total": str(total)}))


def insert_order(total: int = 5, customer: str | None = None) -> Callable[[Connection], StoredResponse]:
    """Return work that inserts one order."""

    def work(tx: Connection) -> StoredResponse:
        statement = "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING order_id"
        (order_id,) = tx.execute(statement, (customer, total)).fetchone() or (0,)
        return StoredResponse(201, json.dumps({"order_id": order_id}))

    return work


def count_orders(rows: Rows) -> int:
    """Return the number of orders."""
    (row,) = rows.execute("SELECT count(*) AS n FROM orders").fetchall()
    return int(row["n"])


def test_repeat_returns_stored_response_byte_for_byte(guard: TransactionGuard, orders: Rows) -> None:
    """I1: the work does not run again, and the response is marked as replayed."""
    first = guard.run(identity("k1"), insert_order())
    again = guard.run(identity("k1"), insert_order())
    assert (again.status_code, again.body) == (first.status_code, first.body) == (201, '{"order_id": 1}')
    assert (first.replayed, again.replayed) == (False, True)
    assert count_orders(orders) == 1


def test_guard_costs_five_round_trips(database_url: str, orders: Rows) -> None:
    """C27: without a pipeline, whose Flush can reach a pooler after the transaction. A repeat costs three."""
    with RoundTrips(database_url) as trips, open_guard(trips.url) as guard:
        guard.run(identity("warm-up"), insert_order())
        before = trips.count
        guard.run(identity("k1"), insert_order())
        assert trips.since(before) == 5 + 1
        before = trips.count
        guard.run(identity("k2"), lambda _tx: StoredResponse(204, ""))
        assert trips.since(before) == 5
        before = trips.count
        assert guard.run(identity("k1"), insert_order()).replayed
        assert trips.since(before) == 3
    assert count_orders(orders) == 2


def test_concurrent_requests_with_one_key_run_work_once(database_url: str, orders: Rows) -> None:
    """I5: the others wait and get the stored response."""

    def request(_number: int) -> StoredResponse:
        with open_guard(database_url) as guard:
            return guard.run(identity("k1"), insert_order())

    responses = run_concurrently(12, request)
    assert {(response.status_code, response.body) for response in responses} == {(201, responses[0].body)}
    assert sum(not response.replayed for response in responses) == 1
    assert count_orders(orders) == 1


def test_other_request_with_same_key_is_key_conflict(guard: TransactionGuard, orders: Rows) -> None:
    """I2: the connection is usable for the next request."""
    guard.run(identity("k1"), insert_order())
    with pytest.raises(KeyConflictError):
        guard.run(identity("k1", total=6), insert_order(6))
    assert count_orders(orders) == 1
    assert not guard.run(identity("k2"), insert_order()).replayed


@pytest.mark.parametrize("other", [{"caller": "other caller"}, {"route": "POST /returns"}])
def test_key_is_scoped_by_caller_and_route(guard: TransactionGuard, orders: Rows, other: dict[str, str]) -> None:
    """I7: other callers and routes have their own keys."""
    guard.run(identity("k1"), insert_order())
    assert not guard.run(identity("k1", **other), insert_order()).replayed  # type: ignore[arg-type]
    assert count_orders(orders) == 2


def test_failed_work_leaves_neither_rows_nor_key(guard: TransactionGuard, orders: Rows) -> None:
    """E6: a repeat runs."""

    def fail(tx: Connection) -> StoredResponse:
        insert_order()(tx)
        raise BadRequestError("no such article")

    with pytest.raises(BadRequestError):
        guard.run(identity("k1"), fail)
    assert count_orders(orders) == 0
    assert guard.run(identity("k1"), insert_order()).status_code == 201


def test_database_error_in_work_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """The error is one of the library, and the connection is usable afterwards."""
    guard.run(identity("k1"), insert_order(customer="ann"))
    with pytest.raises(InternalError, match="duplicate key"):
        guard.run(identity("k2"), insert_order(customer="ann"))
    assert count_orders(orders) == 1
    assert guard.run(identity("k2"), insert_order(customer="bob")).status_code == 201


def test_work_can_use_savepoint(guard: TransactionGuard, orders: Rows) -> None:
    """An error that the work catches does not end the transaction."""

    def work(tx: Connection) -> StoredResponse:
        insert_order(customer="ann")(tx)
        try:
            with tx.transaction():
                insert_order(customer="ann")(tx)
        except psycopg.errors.UniqueViolation:
            return StoredResponse(409, '{"code":"TAKEN"}')
        return StoredResponse(201, "")

    assert guard.run(identity("k1"), work).status_code == 409
    assert guard.run(identity("k1"), work).replayed
    assert count_orders(orders) == 1


@pytest.mark.parametrize("status", [400, 500, 503])
def test_response_that_is_not_final_is_not_committed(guard: TransactionGuard, orders: Rows, status: int) -> None:
    """I3: a corrected or repeated request runs."""

    def work(tx: Connection) -> StoredResponse:
        insert_order()(tx)
        return StoredResponse(status, "")

    assert guard.run(identity("k1"), work) == StoredResponse(status, "")
    assert count_orders(orders) == 0
    assert not guard.run(identity("k1"), insert_order()).replayed


@pytest.mark.parametrize("status", [200, 299, 401, 404, 409, 499])
def test_final_response_is_stored(guard: TransactionGuard, status: int) -> None:
    """I3: a refusal is final, and the constraint of the table agrees with `StoredResponse.is_final`."""
    guard.run(identity("k1"), lambda _tx: StoredResponse(status, "refused"))
    assert guard.run(identity("k1"), insert_order()) == StoredResponse(status, "refused", "REPLAYED")


def test_work_must_return_stored_response(guard: TransactionGuard, orders: Rows) -> None:
    """Any other value is an InternalError and leaves nothing."""

    def work(tx: Connection) -> StoredResponse:
        insert_order()(tx)
        return None  # type: ignore[return-value]

    with pytest.raises(InternalError, match="must return a StoredResponse, not NoneType"):
        guard.run(identity("k1"), work)
    assert count_orders(orders) == 0


@pytest.mark.parametrize("body", [{"order_id": 1}, b"{}", None])
def test_body_of_a_stored_response_must_be_text(guard: TransactionGuard, orders: Rows, body: Any) -> None:
    """C30: the error says what to write, and nothing is committed."""

    def work(tx: Connection) -> StoredResponse:
        insert_order()(tx)
        return StoredResponse(200, body)

    with pytest.raises(InternalError, match=r"must be text: write StoredResponse\(status, json.dumps\(body\)\)"):
        guard.run(identity("k1"), work)
    assert count_orders(orders) == 0
    assert not guard.run(identity("k1"), insert_order()).replayed


def test_lock_timeout_raises_request_in_progress(database_url: str, orders: Rows) -> None:
    """I8: the request does not wait until the timeout of the function."""
    short_wait = GuardSettings(ttl=timedelta(hours=1), lock_wait=timedelta(milliseconds=50))
    started, may_end = threading.Event(), threading.Event()

    def slow(tx: Connection) -> StoredResponse:
        started.set()
        may_end.wait(timeout=30)
        return insert_order()(tx)

    def hold() -> None:
        with open_guard(database_url) as first:
            first.run(identity("k1"), slow)

    holder = threading.Thread(target=hold)
    holder.start()
    assert started.wait(timeout=30)
    with open_guard(database_url, short_wait) as second:
        with pytest.raises(RequestInProgressError):
            second.run(identity("k1"), insert_order())
        may_end.set()
        holder.join()
        assert second.run(identity("k1"), insert_order()).replayed
    assert count_orders(orders) == 1


def test_expired_key_is_new(guard: TransactionGuard, orders: Rows) -> None:
    """I4: by the clock of the database."""
    guard.run(identity("k1"), insert_order())
    orders.execute("UPDATE idempotency_keys SET created_at = now() - interval '25 h', expires_at = now()")
    assert not guard.run(identity("k1"), insert_order()).replayed
    assert count_orders(orders) == 2


def test_lost_connection_is_reestablished_before_work(guard: TransactionGuard, orders: Rows) -> None:
    """After a freeze of the Lambda environment, the request still succeeds."""
    guard.run(identity("k1"), insert_order())
    _terminate(orders)
    assert guard.run(identity("k2"), insert_order()).status_code == 201


def test_connection_lost_during_work_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """The work does not run again automatically; a repeat runs it."""
    runs = []

    def work(tx: Connection) -> StoredResponse:
        runs.append(1)
        if len(runs) == 1:
            insert_order()(tx)
            _terminate(orders)
        return insert_order()(tx)

    with pytest.raises(RetryableError):
        guard.run(identity("k1"), work)
    assert (count_orders(orders), len(runs)) == (0, 1)
    assert guard.run(identity("k1"), work).status_code == 201
    assert count_orders(orders) == 1


def test_connection_lost_at_commit_is_ambiguous_until_repeat(guard: TransactionGuard, orders: Rows) -> None:
    """After the repeat there is one order and one response, whether or not the commit succeeded."""

    def work(tx: Connection) -> StoredResponse:
        response = insert_order()(tx)
        _terminate(orders)
        return response

    with pytest.raises(AmbiguousError):
        guard.run(identity("k1"), work)
    assert guard.run(identity("k1"), insert_order()).status_code == 201
    assert count_orders(orders) == 1


def test_server_crash_during_work_leaves_nothing(server: PostgresServer) -> None:
    """Key and row are rolled back together, and the guard reconnects automatically."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(ORDERS)

    def work(tx: Connection) -> StoredResponse:
        insert_order(customer="crash")(tx)
        server.kill()
        return StoredResponse(201, "")

    with open_guard(server.url()) as guard:
        with pytest.raises(AmbiguousError):
            guard.run(identity("crash"), work)
        with pytest.raises(RetryableError):
            guard.run(identity("crash"), work)
        server.start()
        assert not guard.run(identity("crash"), insert_order(customer="crash")).replayed
        assert guard.run(identity("crash"), insert_order(customer="crash")).replayed
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE orders")


def _terminate(rows: Rows) -> None:
    """Terminate every other connection to this database and wait until all have ended."""
    rows.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'grantwire'"
    )
