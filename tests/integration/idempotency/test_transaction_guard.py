"""A transaction guard for any Python handler: key, work and answer commit together or not at all (E6, I1-I8)."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from grantwire.database import Database, DatabaseSettings
from grantwire.idempotency import request_hash
from grantwire.settings import load
from grantwire_idempotency import GuardSettings, RequestIdentity, StoredResponse, TransactionGuard
from grantwire_idempotency.errors import (
    AmbiguousError,
    BadRequestError,
    InternalError,
    KeyConflictError,
    RequestInProgressError,
    RetryableError,
)
from tests.support.concurrency import at_once
from tests.support.plaintext import PLAINTEXT
from tests.support.round_trips import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from infra.local.servers.postgres import PostgresServer
    from tests.integration.conftest import Rows
    from tests.support.client import Client

ORDERS = (
    "CREATE TABLE IF NOT EXISTS orders (order_id int GENERATED ALWAYS AS IDENTITY, customer text UNIQUE, total int)"
)
SETTINGS = GuardSettings(ttl=timedelta(hours=24), lock_wait=timedelta(seconds=2))


@contextmanager
def guarding(url: str, settings: GuardSettings = SETTINGS) -> Iterator[TransactionGuard]:
    """A guard with a connection of its own."""
    with closing(Database(load(DatabaseSettings, {**PLAINTEXT, "DATABASE_URL": url}))) as database:
        yield TransactionGuard(database, settings)


@pytest.fixture
def guard(database_url: str, orders: Rows) -> Iterator[TransactionGuard]:
    """A guard of a handler that takes orders."""
    assert count(orders) == 0
    with guarding(database_url) as guard:
        yield guard


@pytest.fixture
def orders(rows: Rows) -> Rows:
    """A table that has nothing to do with entitlements."""
    rows.execute(ORDERS)
    rows.execute("GRANT SELECT, INSERT ON orders TO grantwire_functions")
    return rows


def identity(key: str, total: int = 5, *, caller: str = "shop", route: str = "POST /orders") -> RequestIdentity:
    """Whose request it is, and what it asks for."""
    return RequestIdentity(caller, route, key, request_hash({"total": str(total)}))


def order(total: int = 5, customer: str | None = None) -> Callable[[Connection], StoredResponse]:
    """The work: one row."""

    def work(tx: Connection) -> StoredResponse:
        statement = "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING order_id"
        (order_id,) = tx.execute(statement, (customer, total)).fetchone() or (0,)
        return StoredResponse(201, json.dumps({"order_id": order_id}))

    return work


def count(rows: Rows) -> int:
    """How many orders there are."""
    (row,) = rows.execute("SELECT count(*) AS n FROM orders").fetchall()
    return int(row["n"])


def test_a_repeat_gets_the_first_answer_and_does_not_run(guard: TransactionGuard, orders: Rows) -> None:
    """I1: byte for byte, and marked as replayed."""
    first = guard.run(identity("k1"), order())
    again = guard.run(identity("k1"), order())
    assert (again.status_code, again.body) == (first.status_code, first.body) == (201, '{"order_id": 1}')
    assert (first.replayed, again.replayed) == (False, True)
    assert count(orders) == 1


def test_work_costs_two_round_trips_beside_its_own(database_url: str, orders: Rows) -> None:
    """BEGIN travels with the check of the key, the stored answer with the COMMIT."""
    with RoundTrips(database_url) as trips, guarding(trips.url) as guard:
        guard.run(identity("warm-up"), order())
        before = trips.count
        guard.run(identity("k1"), order())
        assert trips.since(before) == 2 + 1
        before = trips.count
        guard.run(identity("k2"), lambda _tx: StoredResponse(204, ""))
        assert trips.since(before) == 2
        before = trips.count
        assert guard.run(identity("k1"), order()).replayed
        assert trips.since(before) == 2
    assert count(orders) == 2


def test_many_at_once_with_one_key_do_the_work_once(database_url: str, orders: Rows) -> None:
    """I5: the others wait and get its answer."""

    def ask(_number: int) -> StoredResponse:
        with guarding(database_url) as guard:
            return guard.run(identity("k1"), order())

    answers = at_once(12, ask)
    assert {(answer.status_code, answer.body) for answer in answers} == {(201, answers[0].body)}
    assert sum(not answer.replayed for answer in answers) == 1
    assert count(orders) == 1


def test_another_request_with_the_key_is_a_conflict(guard: TransactionGuard, orders: Rows) -> None:
    """I2; and the connection is fit for the next request."""
    guard.run(identity("k1"), order())
    with pytest.raises(KeyConflictError):
        guard.run(identity("k1", total=6), order(6))
    assert count(orders) == 1
    assert not guard.run(identity("k2"), order()).replayed


@pytest.mark.parametrize("other", [{"caller": "somebody else"}, {"route": "POST /returns"}])
def test_a_key_is_another_one_for_another_caller_or_route(
    guard: TransactionGuard, orders: Rows, other: dict[str, str]
) -> None:
    """I7."""
    guard.run(identity("k1"), order())
    assert not guard.run(identity("k1", **other), order()).replayed  # type: ignore[arg-type]
    assert count(orders) == 2


def test_work_that_fails_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """E6: neither its rows nor its key; a repeat runs."""

    def fails(tx: Connection) -> StoredResponse:
        order()(tx)
        raise BadRequestError("no such article")

    with pytest.raises(BadRequestError):
        guard.run(identity("k1"), fails)
    assert count(orders) == 0
    assert guard.run(identity("k1"), order()).status_code == 201


def test_work_that_the_database_refuses_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """Errors of psycopg do not reach the author; the transaction is over and the connection usable."""
    guard.run(identity("k1"), order(customer="ann"))
    with pytest.raises(InternalError, match="duplicate key"):
        guard.run(identity("k2"), order(customer="ann"))
    assert count(orders) == 1
    assert guard.run(identity("k2"), order(customer="bob")).status_code == 201


def test_work_may_use_a_savepoint(guard: TransactionGuard, orders: Rows) -> None:
    """What it catches itself costs the transaction nothing."""

    def work(tx: Connection) -> StoredResponse:
        order(customer="ann")(tx)
        try:
            with tx.transaction():
                order(customer="ann")(tx)
        except psycopg.errors.UniqueViolation:
            return StoredResponse(409, '{"code":"TAKEN"}')
        return StoredResponse(201, "")

    assert guard.run(identity("k1"), work).status_code == 409
    assert guard.run(identity("k1"), work).replayed
    assert count(orders) == 1


@pytest.mark.parametrize("status", [400, 500, 503])
def test_an_answer_that_is_not_final_is_neither_stored_nor_committed(
    guard: TransactionGuard, orders: Rows, status: int
) -> None:
    """I3: a corrected or repeated request runs."""

    def work(tx: Connection) -> StoredResponse:
        order()(tx)
        return StoredResponse(status, "")

    assert guard.run(identity("k1"), work) == StoredResponse(status, "")
    assert count(orders) == 0
    assert not guard.run(identity("k1"), order()).replayed


@pytest.mark.parametrize("status", [200, 299, 401, 404, 409, 499])
def test_an_answer_that_is_final_is_stored(guard: TransactionGuard, status: int) -> None:
    """I3: a refusal is final for its key, and the table's constraint agrees with `StoredResponse.final`."""
    guard.run(identity("k1"), lambda _tx: StoredResponse(status, "refused"))
    assert guard.run(identity("k1"), order()) == StoredResponse(status, "refused", "REPLAYED")


def test_work_that_returns_no_answer_is_told_so(guard: TransactionGuard, orders: Rows) -> None:
    """And leaves nothing."""

    def work(tx: Connection) -> StoredResponse:
        order()(tx)
        return None  # type: ignore[return-value]

    with pytest.raises(InternalError, match="must return a StoredResponse, not NoneType"):
        guard.run(identity("k1"), work)
    assert count(orders) == 0


def test_a_key_that_is_held_too_long_is_in_progress(database_url: str, orders: Rows) -> None:
    """I8: instead of hanging until the function's timeout."""
    impatient = GuardSettings(ttl=timedelta(hours=1), lock_wait=timedelta(milliseconds=50))
    inside, leave = threading.Event(), threading.Event()

    def slow(tx: Connection) -> StoredResponse:
        inside.set()
        leave.wait(timeout=30)
        return order()(tx)

    def hold() -> None:
        with guarding(database_url) as first:
            first.run(identity("k1"), slow)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(timeout=30)
    with guarding(database_url, impatient) as second:
        with pytest.raises(RequestInProgressError):
            second.run(identity("k1"), order())
        leave.set()
        holder.join()
        assert second.run(identity("k1"), order()).replayed
    assert count(orders) == 1


def test_an_expired_key_is_new(guard: TransactionGuard, orders: Rows) -> None:
    """I4: by the database's clock."""
    guard.run(identity("k1"), order())
    orders.execute("UPDATE idempotency_keys SET created_at = now() - interval '25 h', expires_at = now()")
    assert not guard.run(identity("k1"), order()).replayed
    assert count(orders) == 2


def test_a_lost_connection_is_made_again_before_the_work(guard: TransactionGuard, orders: Rows) -> None:
    """A sandbox that was frozen: the request does not notice."""
    guard.run(identity("k1"), order())
    _terminate(orders)
    assert guard.run(identity("k2"), order()).status_code == 201


def test_a_connection_lost_during_the_work_leaves_nothing(guard: TransactionGuard, orders: Rows) -> None:
    """The work is not run again behind the author's back; a repeat runs it."""
    runs = []

    def work(tx: Connection) -> StoredResponse:
        runs.append(1)
        if len(runs) == 1:
            order()(tx)
            _terminate(orders)
        return order()(tx)

    with pytest.raises(RetryableError):
        guard.run(identity("k1"), work)
    assert (count(orders), len(runs)) == (0, 1)
    assert guard.run(identity("k1"), work).status_code == 201
    assert count(orders) == 1


def test_a_connection_lost_at_the_commit_is_ambiguous_and_a_repeat_settles_it(
    guard: TransactionGuard, orders: Rows
) -> None:
    """Whether it was done or not, the repeat ends with one order and one answer."""

    def work(tx: Connection) -> StoredResponse:
        answer = order()(tx)
        _terminate(orders)
        return answer

    with pytest.raises(AmbiguousError):
        guard.run(identity("k1"), work)
    assert guard.run(identity("k1"), order()).status_code == 201
    assert count(orders) == 1


def test_a_server_that_crashes_during_the_work_leaves_nothing(server: PostgresServer) -> None:
    """The server is killed; key and row are gone together, and the guard recovers by itself."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(ORDERS)

    def work(tx: Connection) -> StoredResponse:
        order(customer="crash")(tx)
        server.kill()
        return StoredResponse(201, "")

    with guarding(server.url()) as guard:
        with pytest.raises(AmbiguousError):
            guard.run(identity("crash"), work)
        with pytest.raises(RetryableError):
            guard.run(identity("crash"), work)
        server.start()
        assert not guard.run(identity("crash"), order(customer="crash")).replayed
        assert guard.run(identity("crash"), order(customer="crash")).replayed
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE orders")


def test_it_shares_its_rule_with_the_grants(client: Client, guard: TransactionGuard, orders: Rows) -> None:
    """The same SQL functions: a key that a grant holds is a conflict here."""
    client.grant("k1")
    (row,) = orders.execute("SELECT caller, route FROM idempotency_keys").fetchall()
    with pytest.raises(KeyConflictError):
        guard.run(identity("k1", caller=row["caller"], route=row["route"]), order())


def _terminate(rows: Rows) -> None:
    """End every other connection to this database, and wait until it has ended."""
    rows.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'grantwire'"
    )
