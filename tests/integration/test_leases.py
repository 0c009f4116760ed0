"""O2, D1, T1: one lease protocol for the rows that workers claim, whatever the table.

What only one table has is in its own file: the order of the outbox, the dead letters of notifications, the batches of
commands.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest

from grantwire.errors import LeaseLostError
from grantwire.notifications import store as notifications
from grantwire.operations import command_store as commands
from grantwire.outbox import store as outbox
from grantwire.settings import load
from grantwire.workers.leases import Completion, Failure, Lease, LeaseSettings, RetryDecision
from tests.support.concurrency import meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grantwire.database import Connection
    from grantwire.workers.leases import LeasedTable
    from tests.integration.conftest import Rows

NOON = datetime(2026, 1, 8, 12, tzinfo=UTC)
LEASE = timedelta(seconds=30)
SETTINGS = load(LeaseSettings, {"LEASE": "30s"})
TICK = timedelta(microseconds=1)


class Leased(NamedTuple):
    """A leased table: its statements, one that inserts `count` rows that are due at `at`, and one that reads all."""

    store: LeasedTable[Any]
    insert: str
    read: str


TABLES = {
    "outbox": Leased(
        outbox,
        """
        INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready,
                                   next_retry_at)
        SELECT gen_random_uuid(), 'EntitlementGranted', 'u' || n || '/item1', 1, '{}', true, %(at)s
          FROM generate_series(1, %(count)s) n""",
        "SELECT event_id::text AS id, * FROM outbox_events ORDER BY event_id",
    ),
    "notifications": Leased(
        notifications,
        """
        INSERT INTO notifications (notification_id, event_id, event_type, user_id, stock_keeping_unit, version, payload,
                                   next_retry_at)
        SELECT gen_random_uuid(), gen_random_uuid(), 'EntitlementGranted', 'u' || n, 'item1', 1, '{}', %(at)s
          FROM generate_series(1, %(count)s) n""",
        "SELECT notification_id AS id, * FROM notifications ORDER BY notification_id",
    ),
    "commands": Leased(
        commands,
        """
        INSERT INTO operator_commands (command_id, kind, arguments, actor, reason, source, next_run_at)
        SELECT gen_random_uuid(), 'read_model.verify', '{}', 'ann', 'test', 'test', %(at)s
          FROM generate_series(1, %(count)s) n""",
        "SELECT command_id AS id, * FROM operator_commands ORDER BY command_id",
    ),
}


@pytest.fixture
def one(database_url: str) -> Iterator[Connection]:
    """The connection of a worker."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def two(database_url: str) -> Iterator[Connection]:
    """The connection of another worker."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
class TestLeasedTable:
    """Claims of several workers on rows of one table."""

    def test_claims_share_no_row_and_wait_for_none(
        self, one: Connection, two: Connection, rows: Rows, table: Leased
    ) -> None:
        """O2: a claim passes over the rows that another transaction has locked."""
        rows.execute(table.insert, {"count": 4, "at": NOON})
        first, second = (Lease(table.store, SETTINGS, "same host", lambda: NOON) for _ in range(2))
        one.autocommit = False
        first.claim(one, 2)
        assert not meet(one, two, rows, second.claim).waited
        assert (len(first.held), len(second.held)) == (2, 2)
        assert first.held.keys().isdisjoint(second.held)
        assert first.token != second.token

    def test_lease_ends_at_its_time_and_not_before(self, one: Connection, rows: Rows, table: Leased) -> None:
        """O2: renewed, it lasts from then. Claiming a row whose lease has ended counts as a failed attempt."""
        rows.execute(table.insert, {"count": 1, "at": NOON})
        now = NOON
        first, second = (Lease(table.store, SETTINGS, "worker", lambda: now) for _ in range(2))
        assert [item.attempt_count for item in first.claim(one)] == [0]
        now = NOON + LEASE - TICK
        assert second.claim(one) == []
        first.renew(one)
        now += LEASE - TICK
        assert second.claim(one) == []
        now += TICK
        assert [item.attempt_count for item in second.claim(one)] == [1]

    def test_late_worker_changes_nothing_of_its_successor(self, one: Connection, rows: Rows, table: Leased) -> None:
        """O2: every write checks the token, also a release. The rows that the worker still has are its own."""
        rows.execute(table.insert, {"count": 2, "at": NOON})
        now = NOON
        late, successor = (Lease(table.store, SETTINGS, "worker", lambda: now) for _ in range(2))
        late.claim(one)
        now = NOON + LEASE
        successor.claim(one, 1)
        (lost,) = successor.held
        (kept,) = late.held.keys() - {lost}
        before = rows.execute(table.read).fetchall()
        with pytest.raises(LeaseLostError, match="renew: 1 of 2"):
            late.renew(one)
        writes: list[Callable[[], object]] = [
            lambda: late.release(one, [lost]),
            lambda: late.fail(one, [Failure(lost, RetryDecision(1, None), "no")]),
            lambda: late.fail(one, [Failure(lost, RetryDecision(1, LEASE), "no")]),
            lambda: late.complete(one, [Completion(lost)]),
        ]
        for write in writes:
            with pytest.raises(LeaseLostError, match="0 of 1"):
                write()
        assert rows.execute(table.read).fetchall() == before
        assert rows.execute("SELECT FROM notification_dlq").fetchall() == []
        with pytest.raises(LeaseLostError, match="complete: 1 of 2"):
            late.complete(one, [Completion(lost), Completion(kept)])
        after = {row["id"]: row for row in rows.execute(table.read)}
        assert after[lost] in before
        assert after[kept]["status"] in {"PUBLISHED", "SENT", "DONE"}
        successor.complete(one, [Completion(lost)])

    def test_row_whose_outcome_is_rejected_does_not_affect_the_others(
        self, one: Connection, rows: Rows, table: Leased
    ) -> None:
        """N5, O2: it is not reported as written, and the lease of the others is not lost."""
        rows.execute(table.insert, {"count": 3, "at": NOON})
        name = table.read.partition(" FROM ")[2].split()[0]
        rows.execute(f"ALTER TABLE {name} ADD CONSTRAINT no_fault CHECK (last_error <> 'fault')")
        lease = Lease(table.store, SETTINGS, "worker", lambda: NOON)
        rejected, *others = (table.store.get_id(item) for item in lease.claim(one))
        reasons = {rejected: "fault"} | dict.fromkeys(others, "no")
        failures = [Failure(row_id, RetryDecision(1, LEASE), reason) for row_id, reason in reasons.items()]
        assert sorted(lease.fail(one, failures)) == sorted(others)
        assert lease.held == {}

    def test_released_row_is_due_at_once(self, one: Connection, rows: Rows, table: Leased) -> None:
        """O7: a worker that ends gives its rows back, and no attempt is counted."""
        rows.execute(table.insert, {"count": 1, "at": NOON})
        first, second = (Lease(table.store, SETTINGS, "worker", lambda: NOON) for _ in range(2))
        (claimed,) = first.claim(one)
        first.release(one)
        assert second.claim(one) == [claimed]
