"""O2, O8: which events a claim takes, which it leaves, and how many rows it reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from grantwire.outbox import store
from grantwire.outbox.store import CLAIM, ClaimedEvent, oldest_age_seconds, promote_stuck
from grantwire.settings import load
from grantwire.workers.leases import Failure, Lease, LeaseSettings, RetryDecision
from tests.support.workers.relay_support import enqueue, enqueue_many

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grantwire.database import Connection

LEASE = timedelta(seconds=30)


@pytest.fixture
def tx(database_url: str) -> Iterator[Connection]:
    """The connection of a relay."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def _claim(
    tx: Connection, limit: int = 10, now: datetime | None = None
) -> tuple[Lease[ClaimedEvent], list[ClaimedEvent]]:
    lease: Lease[ClaimedEvent] = Lease(store, load(LeaseSettings, {"LEASE": "30s"}), "test", lambda: now)
    return lease, lease.claim(tx, limit)


def _keys_and_versions(events: list[ClaimedEvent]) -> list[tuple[str, int]]:
    return [(event.aggregate_key, event.aggregate_version) for event in events]


def test_claim_takes_heads_and_the_runs_behind_them(tx: Connection) -> None:
    """O8: the batch is shared equally by the aggregates, and each run is in order."""
    enqueue_many(tx, aggregates=2, each=5)
    _, events = _claim(tx, limit=6)
    assert _keys_and_versions(events) == [(f"u{number}/item1", version) for number in (0, 1) for version in (1, 2, 3)]
    assert _claim(tx)[1] == []


def test_run_ends_at_the_first_gap(tx: Connection, database_url: str) -> None:
    """O8, V1: the claim neither skips nor waits for an event that another transaction has locked."""
    enqueue_many(tx, aggregates=1, each=4)
    tx.execute("SET lock_timeout = '500ms'")
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM outbox_events WHERE aggregate_version = 3 FOR UPDATE")
        assert _keys_and_versions(_claim(tx)[1]) == [("u0/item1", 1), ("u0/item1", 2)]


def test_event_that_is_not_due_blocks_its_successors(tx: Connection) -> None:
    """O4, O8: a failed head is claimed again after its backoff, and its successors wait for it."""
    enqueue_many(tx, aggregates=1, each=2)
    now = datetime.now(UTC)
    lease, (first, second) = _claim(tx, now=now)
    lease.fail(tx, [Failure(first.event_id, RetryDecision(1, timedelta(seconds=5)), "no")])
    lease.release(tx, [second.event_id])
    assert _claim(tx, now=now + timedelta(seconds=4))[1] == []
    _, events = _claim(tx, now=now + timedelta(seconds=5))
    # An event that has failed before is claimed without the run behind it.
    assert _keys_and_versions(events) == [("u0/item1", 1)]
    assert events[0].attempt_count == 1


def test_expired_leases_are_reclaimed_one_at_a_time(tx: Connection) -> None:
    """O2: reclaiming counts as an attempt; an event that kills its worker must cost the others none."""
    enqueue_many(tx, aggregates=3, each=2)
    _claim(tx)
    late = datetime.now(UTC) + LEASE + timedelta(seconds=1)
    assert _claim(tx, now=late - timedelta(seconds=5))[1] == []
    enqueue(tx, "fresh/item1", 1)
    _, events = _claim(tx, now=late)
    assert [(event.reclaimed, event.attempt_count) for event in events] == [(False, 0), (True, 1)]
    _, events = _claim(tx, now=late)
    assert [(event.reclaimed, event.attempt_count) for event in events] == [(True, 1)]


def test_claim_makes_heap_only_updates(tx: Connection) -> None:
    """An update that is not heap-only (HOT) writes to every index; it should happen only if a page is full."""
    enqueue_many(tx, aggregates=20, each=1)
    with tx.transaction():
        _claim(tx, limit=20)
        updates = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'outbox_events'"
        row = tx.execute(updates).fetchone()
    assert row is not None
    assert row[0] == 20
    assert row[1] >= 15


def test_oldest_age_is_zero_without_claimable_events(tx: Connection) -> None:
    """The value of the alarm on OldestEventAge; otherwise it is the age of the oldest claimable event."""
    assert oldest_age_seconds(tx) == 0
    enqueue_many(tx, aggregates=2, each=2)
    assert 90 < oldest_age_seconds(tx, datetime.now(UTC) + timedelta(seconds=100)) < 110


def test_promote_stuck_makes_wrongly_blocked_heads_claimable(tx: Connection) -> None:
    """A safety net for bugs: it repairs and counts blocked heads. A FAILED head stays blocked."""
    for aggregate in ("stuck/item1", "failed/item1", "fine/item1"):
        enqueue(tx, aggregate, 1)
    tx.execute("UPDATE outbox_events SET ready = false WHERE aggregate_key <> 'fine/item1'")
    tx.execute("UPDATE outbox_events SET status = 'FAILED' WHERE aggregate_key = 'failed/item1'")
    assert (promote_stuck(tx), promote_stuck(tx)) == (1, 0)


_INSERT_PARKED = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'parked' || a, v, '{}',
       CASE v WHEN 1 THEN 'FAILED' ELSE 'PENDING' END, false, now() - interval '1 day'
  FROM generate_series(1, 100) a, generate_series(1, 1000) v
"""


def test_parked_events_do_not_slow_down_a_claim(owner_url: str) -> None:
    """O8: a claim reads neither 100,000 older events behind FAILED heads nor the heads after the first 200."""
    with psycopg.connect(owner_url, autocommit=True) as tx:
        tx.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
        tx.execute(_INSERT_PARKED)
        enqueue_many(tx, aggregates=1000, each=1)
        _assert_claim_reads_few_rows(tx)
        tx.execute("ANALYZE outbox_events")
        _assert_claim_reads_few_rows(tx)
        # Statistics from a time when no event was ready.
        tx.execute("CREATE TEMPORARY TABLE heads AS SELECT event_id FROM outbox_events WHERE ready")
        tx.execute("UPDATE outbox_events SET ready = false WHERE ready")
        tx.execute("VACUUM ANALYZE outbox_events")
        tx.execute("UPDATE outbox_events SET ready = true WHERE event_id IN (SELECT event_id FROM heads)")
        _assert_claim_reads_few_rows(tx)


def _assert_claim_reads_few_rows(tx: Connection) -> None:
    """Check both the custom plan and the generic plan."""
    names = {"token": "$1", "limit": "$2", "lease": "$3", "now": "$4"}
    for plan in ("force_custom_plan", "force_generic_plan"):
        tx.execute("SELECT set_config('plan_cache_mode', %s, false)", (plan,))
        with tx.transaction(force_rollback=True):
            tx.execute(f"PREPARE claim (text, integer, interval, timestamptz) AS {CLAIM % names}")
            explained = tx.execute(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim ('x', 200, '30 seconds', NULL)"
            ).fetchone()
            tx.execute("DEALLOCATE claim")
        assert explained is not None
        root = explained[0][0]["Plan"]
        scans = [node for node in _nodes(root) if node.get("Relation Name") == "outbox_events"]
        scans += [node for node in _nodes(root) if node["Node Type"] == "Bitmap Index Scan"]
        (head_scan,) = [node for node in scans if node.get("Index Name") == "outbox_events_ready"]
        assert head_scan["Node Type"] == "Index Scan"
        assert "Seq Scan" not in {node["Node Type"] for node in scans}
        assert max(map(_rows_read, scans)) <= 3 * 200  # dead row versions are read, too
        assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 5_000


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _rows_read(node: dict[str, Any]) -> float:
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return float(sum(node.get(name, 0) for name in names) * node["Actual Loops"])
