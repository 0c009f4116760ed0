"""O8, I1, E4: what a hot statement reads, by name, among many rows that are none of its business.

Other guards stand beside their statements: a claim among parked events (test_outbox_claim), the batches of the sweep
(test_retention_sweep), the inbox, the summary, deliveries and the message store. What a function in the database reads
cannot be explained from outside; there, PostgreSQL's own count of scans tells.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.rows import tuple_row

from grantwire.database import Database, DatabaseSettings
from grantwire.entitlements.store import CHANGE, LIST
from grantwire.outbox import store
from grantwire.outbox.store import CLAIM
from grantwire.runtime.relay import SESSION
from grantwire.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from tests.integration.conftest import Rows

MANY = 20_000

_PUBLISHED = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, published_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'u' || n, 1, '{}', 'PUBLISHED', false, now()
  FROM generate_series(1, %s) n
"""
# Behind each head that failed there are 99 more.
_PARKED = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, status, ready, created_at)
SELECT gen_random_uuid(), 'EntitlementGranted', 'parked' || n / 100, n %% 100 + 1, '{}',
       CASE n %% 100 WHEN 0 THEN 'FAILED' ELSE 'PENDING' END, false, now() - interval '1 day'
  FROM generate_series(0, %s - 1) n
"""
# Three of each: a head and two that follow it.
_OPEN = """
INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, ready)
SELECT gen_random_uuid(), 'EntitlementGranted', 'open' || n / 3, n %% 3 + 1, '{}', n %% 3 = 0
  FROM generate_series(0, %s - 1) n
"""
_KEYS = """
INSERT INTO idempotency_keys
SELECT 'local', 'route', 'k' || n, 'v1:0', 200, '{}', now(), now() + interval '1 day' FROM generate_series(1, %s) n
"""
_RIGHTS = """
INSERT INTO entitlements SELECT 'u' || n %% 100, 's' || n, 'ACTIVE', 1, now() FROM generate_series(1, %s) n
"""
_SCANNED = """
SELECT relation::text AS name, pg_stat_get_xact_numscans(relation) AS scans
  FROM (SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ANY (%(tables)s::regclass[])
         UNION ALL SELECT unnest(%(tables)s::regclass[])) AS r (relation)
"""


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def planned(rows: Rows, request: pytest.FixtureRequest) -> Rows:
    """Plans for these values, and plans for any."""
    rows.execute(f"SET plan_cache_mode = {request.param}")
    return rows


@pytest.mark.parametrize("backlog", [_PUBLISHED, _PARKED], ids=["published", "parked"])
def test_a_claim_finds_heads_successors_and_rows_each_by_their_index(planned: Rows, backlog: str) -> None:
    """O2, O8: whatever else the outbox is full of."""
    planned.execute(backlog, (MANY,))
    planned.execute(_OPEN, (300,))
    planned.execute("ANALYZE outbox_events")
    statement = CLAIM % {"token": "$1", "limit": "$2", "lease": "$3", "now": "$4"}
    planned.execute(f"PREPARE claim (text, integer, interval, timestamptz) AS {statement}")
    scans = list(_scans(planned, "EXECUTE claim ('x', 200, '30 seconds', NULL)"))
    assert [scan["Index Name"] for scan in scans] == ["outbox_events_ready", "outbox_events_open", "outbox_events_pkey"]
    assert {scan["Node Type"] for scan in scans[:2]} == {"Index Scan"}


def test_a_page_of_rights_is_read_in_order_from_the_primary_key(planned: Rows) -> None:
    """E4: by the statement itself, so that a page of a user with many rights costs the page and no more."""
    planned.execute(_RIGHTS, (MANY,))
    planned.execute("ANALYZE entitlements")
    statement = LIST.replace("%(user_id)s", "$1").replace("%(after)s", "$2").replace("%(limit)s", "$3")
    planned.execute(f"PREPARE page (text, text, bigint) AS {statement}")
    (scan,) = _scans(planned, "EXECUTE page ('u7', 's5', 10)")
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "entitlements_pkey")


def test_a_replay_is_one_look_by_the_primary_key(planned: Rows) -> None:
    """I1: nothing else is read, neither of the keys nor of the rights."""
    planned.execute(_KEYS, (MANY,))
    planned.execute("ANALYZE idempotency_keys")
    with _scanning(planned, "idempotency_keys", "entitlements", "outbox_events") as scanned:
        assert _change(planned, "k7") == "REPLAYED"
    assert scanned == {"idempotency_keys_pkey": 1}


def test_a_grant_finds_its_key_its_right_and_its_predecessor_by_index(planned: Rows) -> None:
    """E6: whatever the tables are full of."""
    for fill, table in ((_KEYS, "idempotency_keys"), (_RIGHTS, "entitlements"), (_PUBLISHED, "outbox_events")):
        planned.execute(fill, (MANY,))
        planned.execute(f"ANALYZE {table}")
    with _scanning(planned, "idempotency_keys", "entitlements", "outbox_events") as scanned:
        assert _change(planned, "new") == "APPLIED"
    assert scanned.keys() == {"idempotency_keys_pkey", "entitlements_pkey", "outbox_events_open"}


@pytest.mark.parametrize("backlog", [_PUBLISHED, _PARKED], ids=["published", "parked"])
def test_what_is_closed_and_what_follows_it_are_found_by_their_indexes(planned: Rows, backlog: str) -> None:
    """O2, O8: finalise reads the events by their ids, and the open ones of their aggregates."""
    planned.execute(backlog, (MANY,))
    planned.execute(_OPEN, (300,))
    planned.execute("ANALYZE outbox_events")
    parameters = {"token": "x", "limit": 100, "lease": timedelta(seconds=30), "now": None}
    claimed = [row["event_id"] for row in planned.execute(CLAIM, parameters).fetchall()]
    with _scanning(planned, "outbox_events") as scanned:
        planned.execute("SELECT outbox_finalise('x', %s)", (claimed,))
    assert scanned.keys() == {"outbox_events_pkey", "outbox_events_open"}
    left = planned.execute("SELECT count(*) AS n FROM outbox_events WHERE ready").fetchone()
    assert left == {"n": 100}


def test_an_enqueue_planned_on_an_empty_table_reads_the_index_of_a_full_one(rows: Rows) -> None:
    """O1: a connection keeps its plans until the table is analysed, a minute and many thousand events later."""
    for number in range(10):
        _enqueue(rows, f"first{number}")
    rows.execute(_PUBLISHED, (MANY,))
    with _scanning(rows, "outbox_events") as scanned:
        _enqueue(rows, "next")
    assert scanned == {"outbox_events_open": 1}


def test_a_claim_planned_on_an_empty_table_reads_the_indexes_of_a_full_one(environ: dict[str, str], rows: Rows) -> None:
    """O2: on the relay's own connection, which lives as long as its sandbox."""
    lease = timedelta(seconds=30)
    database = Database(load(DatabaseSettings, environ), session=SESSION)
    with closing(database), database.session() as tx:
        for _ in range(10):
            assert store.claim(tx, "x", limit=200, lease=lease) == []
        rows.execute(_PUBLISHED, (MANY,))
        rows.execute(_OPEN, (300,))
        with _scanning(tx, "outbox_events") as scanned:
            assert len(store.claim(tx, "x", limit=200, lease=lease)) == 200
    assert scanned.keys() == {"outbox_events_ready", "outbox_events_open", "outbox_events_pkey"}


def _enqueue(rows: Rows, aggregate: str) -> None:
    rows.execute("SELECT outbox_enqueue(gen_random_uuid(), 'EntitlementGranted', %s, 1, '{}', NULL)", (aggregate,))


def _change(rows: Rows, key: str) -> str:
    parameters = {
        "caller": "local",
        "route": "route",
        "key": key,
        "request_hash": "v1:0",
        "ttl": timedelta(days=1),
        "lock_wait_ms": 2000,
        "status": "ACTIVE",
        "user_id": "new",
        "stock_keeping_unit": "item",
        "reason": "purchase",
        "purchase_id": "p",
        "operation_id": uuid.uuid4(),
        "trace_id": "1-0-0",
    }
    row = rows.cursor(row_factory=tuple_row).execute(CHANGE, parameters).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def _scanning(rows: psycopg.Connection[Any], *tables: str) -> Iterator[Counter[str]]:
    """One transaction, and how often it has read each index of these tables, or a table without an index."""
    scanned: Counter[str] = Counter()
    with rows.transaction():
        before = _scanned(rows, tables)
        yield scanned
        scanned += _scanned(rows, tables) - before


def _scanned(rows: psycopg.Connection[Any], tables: Sequence[str]) -> Counter[str]:
    """What this session has read; some of it may be of earlier transactions."""
    cursor = rows.cursor(row_factory=tuple_row)
    return Counter(dict(cursor.execute(_SCANNED, {"tables": list(tables)}).fetchall()))


def _scans(rows: Rows, statement: str) -> Iterator[dict[str, Any]]:
    """How a plan reads tables: what its nodes say that name an index, or that read a table without one."""
    (row,) = rows.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchall()
    nodes = [row["QUERY PLAN"][0]["Plan"]]
    while nodes:
        node = nodes.pop(0)
        if "Index Name" in node or node["Node Type"] == "Seq Scan":
            yield {"Index Name": None, **node}
        nodes = node.get("Plans", []) + nodes
