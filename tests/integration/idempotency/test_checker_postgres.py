"""C1: the checker over `processed_messages`: the columns of document 000, and one worker of many."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from grantwire_idempotency.checker import IdempotencyChecker
from grantwire_idempotency.errors import RequestInProgressError
from grantwire_idempotency.stores.interface import Key
from tests.integration.idempotency.harness import START
from tests.support.concurrency import at_once

if TYPE_CHECKING:
    from grantwire_idempotency.stores.interface import Store
    from tests.integration.idempotency.harness import PostgresHarness

MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)
MESSAGE = Key("user.created:1", message_id="m-1", message_type="user.created")


@pytest.fixture
def store(postgres_harness: PostgresHarness) -> Store:
    """A store whose clock is the test's."""
    (store,) = postgres_harness.stores(1)
    return store


@pytest.fixture
def checker(store: Store) -> IdempotencyChecker:
    """A worker's."""
    return IdempotencyChecker(store)


def row(harness: PostgresHarness) -> dict[str, Any]:
    """The one row that there is."""
    with psycopg.connect(harness.url, row_factory=dict_row) as connection:
        (found,) = connection.execute("SELECT * FROM processed_messages").fetchall()
    return found


def test_a_message_on_its_way_through_the_table(postgres_harness: PostgresHarness, checker: IdempotencyChecker) -> None:
    """C1: processing, failed with its error, processing again, completed; with the times of each."""
    assert not checker.is_processed(MESSAGE)
    assert checker.mark_processing(MESSAGE, MINUTE)
    found = row(postgres_harness)
    assert (found["idempotency_key"], found["message_id"]) == ("user.created:1", "m-1")
    assert (found["message_type"], found["status"]) == ("user.created", "processing")
    assert (found["started_at"], found["completed_at"], found["error"]) == (START, None, None)
    assert (found["expires_at"], found["created_at"]) == (START + MINUTE, START)

    postgres_harness.advance(timedelta(seconds=10))
    checker.mark_failed(MESSAGE, ValueError("no \x00 such user"))
    found = row(postgres_harness)
    assert (found["status"], found["error"]) == ("failed", "no \N{REPLACEMENT CHARACTER} such user")
    assert found["completed_at"] is None
    assert found["updated_at"] == START + timedelta(seconds=10)
    assert not checker.is_processed(MESSAGE)

    postgres_harness.advance(timedelta(seconds=10))
    assert checker.mark_processing(MESSAGE, MINUTE)
    assert row(postgres_harness)["started_at"] == START + timedelta(seconds=20)
    postgres_harness.advance(timedelta(seconds=10))
    checker.mark_completed(MESSAGE, '{"user": 1}')
    found = row(postgres_harness)
    done = START + timedelta(seconds=30)
    assert (found["status"], found["error"], found["completed_at"]) == ("completed", None, done)
    assert found["expires_at"] == done + DAY
    assert (found["created_at"], found["updated_at"]) == (START, done)
    assert checker.is_processed(MESSAGE)
    assert not checker.mark_processing(MESSAGE, MINUTE)

    postgres_harness.advance(DAY)
    assert not checker.is_processed(MESSAGE)
    assert checker.mark_processing(MESSAGE, MINUTE)


def test_of_many_workers_one_processes_a_message(postgres_harness: PostgresHarness) -> None:
    """C1: claimed in the store, not read and then written: real connections at once, again and again."""
    checkers = [IdempotencyChecker(store) for store in postgres_harness.stores(8)]
    for number in range(10):
        key = f"order:{number}"

        def take(worker: int, key: str = key) -> bool | None:
            try:
                return checkers[worker].mark_processing(key, MINUTE)
            except RequestInProgressError:
                return None

        taken = at_once(8, take)
        assert sorted(taken, key=str) == [None] * 7 + [True]
        checkers[taken.index(True)].mark_completed(key)
        assert at_once(8, take) == [False] * 8
