"""C1: the checker with `processed_messages`: the columns of document 000, and concurrent workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from grantwire_idempotency import IdempotencyChecker, Key, PostgresStore
from grantwire_idempotency.errors import RequestInProgressError
from layers.idempotency.tests.unit.doubles import FakeTime
from tests.support.concurrency import run_concurrently
from tests.support.servers import newest_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layers.idempotency.tests.integration.harness import PostgresHarness

pytestmark = newest_postgres

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(hours=24)
MESSAGE = Key("user.created:1", message_id="m-1", message_type="user.created")


@pytest.fixture
def time() -> FakeTime:
    """Return the clock of the checker."""
    return FakeTime(START.timestamp())


@pytest.fixture
def checker(postgres_harness: PostgresHarness, time: FakeTime) -> Iterator[IdempotencyChecker]:
    """Return the checker of one worker."""
    store = PostgresStore(postgres_harness.url, clock=lambda: datetime.fromtimestamp(time.now, UTC))
    yield IdempotencyChecker(store)
    store.close()


def fetch_message_row(harness: PostgresHarness) -> dict[str, Any]:
    """Return the only row of the table."""
    with psycopg.connect(harness.url, row_factory=dict_row) as connection:
        (message_row,) = connection.execute("SELECT * FROM processed_messages").fetchall()
    return message_row


def test_row_follows_status_of_message(
    postgres_harness: PostgresHarness, checker: IdempotencyChecker, time: FakeTime
) -> None:
    """C1: the row is processing, failed with its error, processing again, then completed, with the times of each."""
    assert not checker.is_processed(MESSAGE)
    assert checker.mark_processing(MESSAGE, MINUTE)
    message_row = fetch_message_row(postgres_harness)
    assert (message_row["idempotency_key"], message_row["message_id"]) == ("user.created:1", "m-1")
    assert (message_row["message_type"], message_row["status"]) == ("user.created", "processing")
    assert (message_row["started_at"], message_row["completed_at"], message_row["error"]) == (START, None, None)
    assert (message_row["expires_at"], message_row["created_at"]) == (START + MINUTE, START)

    time.advance(timedelta(seconds=10))
    checker.mark_failed(MESSAGE, ValueError("no \x00 such user"))
    message_row = fetch_message_row(postgres_harness)
    assert (message_row["status"], message_row["error"]) == ("failed", "no \N{REPLACEMENT CHARACTER} such user")
    assert message_row["completed_at"] is None
    assert message_row["updated_at"] == START + timedelta(seconds=10)
    assert not checker.is_processed(MESSAGE)

    time.advance(timedelta(seconds=10))
    assert checker.mark_processing(MESSAGE, MINUTE)
    assert fetch_message_row(postgres_harness)["started_at"] == START + timedelta(seconds=20)
    time.advance(timedelta(seconds=10))
    checker.mark_completed(MESSAGE, '{"user": 1}')
    message_row = fetch_message_row(postgres_harness)
    done = START + timedelta(seconds=30)
    assert (message_row["status"], message_row["error"], message_row["completed_at"]) == ("completed", None, done)
    assert message_row["expires_at"] == done + DAY
    assert (message_row["created_at"], message_row["updated_at"]) == (START, done)
    assert checker.is_processed(MESSAGE)
    assert not checker.mark_processing(MESSAGE, MINUTE)

    time.advance(DAY)
    assert not checker.is_processed(MESSAGE)
    assert checker.mark_processing(MESSAGE, MINUTE)


def test_one_of_many_workers_processes_message(postgres_harness: PostgresHarness) -> None:
    """C1: the claim is atomic: concurrent connections never process a message twice."""
    checkers = [IdempotencyChecker(store) for store in postgres_harness.stores(8)]
    for number in range(10):
        key = f"order:{number}"

        def try_mark_processing(worker: int, key: str = key) -> bool | None:
            try:
                return checkers[worker].mark_processing(key, MINUTE)
            except RequestInProgressError:
                return None

        results = run_concurrently(8, try_mark_processing)
        assert sorted(results, key=str) == [None] * 7 + [True]
        checkers[results.index(True)].mark_completed(key)
        assert run_concurrently(8, try_mark_processing) == [False] * 8
